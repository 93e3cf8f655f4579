"""Who can reach a service, and whether it may let them."""

from __future__ import annotations

import ipaddress
import socket

from tercet.errors import ConfigError
from tercet.sections import MeshConfig


def is_public(host: str) -> bool:
    """Whether to listen on `host` is to be reachable from other hosts. False for a host that does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def open_doors(service: str, config: MeshConfig) -> tuple[str, ...]:
    """The settings for want of which others could use a service, or read along, if they reached it."""
    if service != "gateway":
        return () if config.tls.mesh_ca else ("tls.mesh_ca",)
    wanted = {"tenants.store": config.tenants.store, "tls.certificate": config.tls.certificate}
    return tuple(key for key, value in wanted.items() if not value)


def check_public_bind(service: str, config: MeshConfig) -> None:
    """Raises ConfigError for a service that others could reach and use, or whose metrics they could read, without being
    asked who they are."""
    metrics = config.metrics
    if metrics.port and not config.tls.insecure_public_bind and is_public(metrics.host):
        raise ConfigError(
            "metrics.host",
            f"{metrics.host} can be reached from other hosts, and metrics are told without a key and in plain text; "
            "listen on 127.0.0.1, or allow it with tls.insecure_public_bind",
        )
    host = getattr(config, service).host
    missing = open_doors(service, config)
    if missing and not config.tls.insecure_public_bind and is_public(host):
        raise ConfigError(
            f"{service}.host",
            f"{host} can be reached from other hosts, but {' and '.join(missing)} {_ARE[len(missing) > 1]} not set; "
            "set what is missing, listen on 127.0.0.1, or allow it with tls.insecure_public_bind",
        )


_ARE = {False: "is", True: "are"}
