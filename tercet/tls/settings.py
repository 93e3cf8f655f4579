"""The settings of TLS: which files each service shows and trusts."""

from __future__ import annotations

from dataclasses import dataclass

from tercet.errors import ConfigError
from tercet.setting_field import setting

# In mesh_certificate and mesh_key: the name of the service whose file it is.
SERVICE_FIELD = "{service}"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates, all in PEM files that may change while a service runs. Read by all services."""

    certificate: str = setting("", "certificate, with its chain, that the gateway shows its clients; empty: no TLS")
    key: str = setting("", "private key of certificate")
    mesh_ca: str = setting("", "CA of the certificates of gateway, scheduler and worker; empty: no TLS between them")
    mesh_certificate: str = setting(
        "", "certificate of this service; {service} in it stands for gateway, scheduler or worker"
    )
    mesh_key: str = setting("", "private key of mesh_certificate; {service} as there")
    insecure_public_bind: bool = setting(
        False, "let other hosts reach a service without keys or TLS: something in front of it sees to both"
    )


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where a certificate and its key are; `ca`, if any, has what all that talk to its owner are trusted by.

    `prefix` is that of the settings that say so, for what is wrong with them.
    """

    certificate: str
    key: str
    ca: str = ""
    prefix: str = "tls."


def edge_files(settings: TlsSettings) -> CertificateFiles | None:
    """What a gateway shows its clients; None: no TLS."""
    return CertificateFiles(settings.certificate, settings.key) if settings.certificate else None


def mesh_files(settings: TlsSettings, service: str) -> CertificateFiles | None:
    """What a service shows the others of the mesh; None: no TLS."""
    if not settings.mesh_ca:
        return None
    certificate, key = (path.replace(SERVICE_FIELD, service) for path in (settings.mesh_certificate, settings.mesh_key))
    return CertificateFiles(certificate, key, settings.mesh_ca, "tls.mesh_")


def tls_problems(settings: TlsSettings) -> list[ConfigError]:
    """What is missing beside what is there."""
    problems: list[ConfigError] = []
    for group in (("certificate", "key"), ("mesh_ca", "mesh_certificate", "mesh_key")):
        given = [name for name in group if getattr(settings, name)]
        problems += [
            ConfigError(f"tls.{name}", f"is not set, but tls.{given[0]} is")
            for name in group
            if given and name not in given
        ]
    return problems
