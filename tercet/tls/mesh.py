"""What a service is to the others of its mesh: it shows a certificate with its name, and asks for theirs."""

from __future__ import annotations

from tercet.errors import ConfigError

from .callers import name_of
from .client import ClientTls
from .server import ServerTls
from .settings import TlsSettings, mesh_files
from .watch import CertificateWatch


class MeshIdentity:
    """One service's certificate, and the CA of all."""

    def __init__(self, watch: CertificateWatch) -> None:
        self._watch = watch

    def listening_to(self, *services: str) -> ServerTls:
        """How it listens: only `services` may call."""
        return ServerTls(self._watch, tuple(map(name_of, services)))

    @property
    def problem(self) -> str:
        """What is wrong with its certificate; empty if nothing is."""
        return self._watch.problem

    def dialling(self, service: str) -> ClientTls:
        """How it dials a `service` now; equal until the certificates change."""
        certificate = self._watch.latest()
        return ClientTls(certificate.ca, certificate.chain, certificate.key, name_of(service))


def mesh_identity(settings: TlsSettings, service: str) -> MeshIdentity | None:
    """That of a gateway, scheduler or worker; None: no TLS in this mesh. Raises ConfigError for files that cannot be
    used, or are those of another service."""
    files = mesh_files(settings, service)
    if files is None:
        return None
    watch = CertificateWatch(files, "client" if service == "gateway" else "server")
    names = watch.latest().names
    if name_of(service) not in names:
        raise ConfigError(
            "tls.mesh_certificate", f"{files.certificate} is not for {name_of(service)}, only for {', '.join(names)}"
        )
    return MeshIdentity(watch)
