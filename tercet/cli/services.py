"""``tercet gateway``, ``tercet scheduler``, ``tercet worker``: one service in this process."""

from __future__ import annotations

import importlib
import ipaddress
import os
import socket
from typing import Any

import click
import structlog

from tercet.cli.settings import SettingsCommand, with_config
from tercet.collector import SELDOM, USUAL, settle
from tercet.config import PROCESS_NAME_VARIABLE, MeshConfig
from tercet.errors import ConfigError
from tercet.mesh_processes import die_with_parent
from tercet.telemetry import configure_logging


def public_note(name: str, config: MeshConfig) -> str:
    """What whoever lets others reach a service should know."""
    if name == "gateway" and config.tenants.store:
        return "keys and texts can be read on their way: there is no TLS yet"
    return "whoever reaches this address can use it: it asks for no key, and there is no TLS yet"


def is_public(host: str) -> bool:
    """Whether to listen on `host` is to be reachable from other hosts. False for a host that does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def service_module(name: str, part: str = "server") -> Any:
    """A module of a service: the one place where this package meets them, and only the one asked for."""
    return importlib.import_module(f"{name}.{part}")


def run_service(name: str, config: MeshConfig) -> None:
    """Runs a service until SIGTERM or SIGINT. Raises errors.StartupError."""
    die_with_parent()
    # With several workers on one host, `tercet up` tells each its name.
    configure_logging(os.environ.get(PROCESS_NAME_VARIABLE) or name, config.log.level, config.log.format)
    host = getattr(config, name).host
    if is_public(host):
        structlog.get_logger().warning("listens_publicly", host=host, note=public_note(name, config))
    serve = service_module(name).serve

    def ready(port: int) -> None:
        # The scheduler's plan log is 10^5 objects, none of them garbage; a look at all of them takes 10 ms and more.
        settle(SELDOM if name == "scheduler" else USUAL)
        structlog.get_logger().info("ready", port=port)

    try:
        import uvloop
    except ImportError as error:
        raise ConfigError("uvloop", "is not installed; run `make setup`") from error
    uvloop.run(serve(config, ready))


@click.command(cls=SettingsCommand)
@with_config(["gateway", "model", "tenants", "log"])
def gateway(config: MeshConfig) -> None:
    """Run one gateway: the edge that clients talk to.

    It tokenizes, streams and enforces deadlines, and holds one stream to its scheduler.
    """
    run_service("gateway", config)


@click.command(cls=SettingsCommand)
@with_config(["scheduler", "log"])
def scheduler(config: MeshConfig) -> None:
    """Run one scheduler: order and time.

    It admits requests, plans steps, and holds one stream to each worker. It sees neither text nor tensors.
    """
    run_service("scheduler", config)


@click.command(cls=SettingsCommand)
@click.option("--dry-run", is_flag=True, help="Print how the memory would be spent, load nothing.")
@with_config(["worker", "model", "log"])
def worker(config: MeshConfig, dry_run: bool) -> None:
    """Run one worker: a device with a model.

    It runs plans step by step, and owns the KV cache.
    """
    if dry_run:
        for line in service_module("worker").budget_lines(config):
            click.echo(line)
        return
    run_service("worker", config)
