"""How a service listens with TLS: certificates that are renewed without a stream noticing, and who may call."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from .callers import check_caller
from .certificate import Certificate
from .settings import TlsSettings, edge_files
from .watch import CertificateWatch


@dataclass(frozen=True, slots=True)
class ServerTls:
    """`callers`, if there are any, are names for one of which callers must show a certificate of the same CA."""

    watch: CertificateWatch
    callers: tuple[str, ...] = ()

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with. Each handshake looks whether the files have changed; what is connected stays."""
        given = self.watch.latest()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            latest = self.watch.latest()
            if latest is given:
                return None
            given = latest
            return _configuration(latest)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), renewed, require_client_authentication=bool(self.callers)
        )

    def admit(self, context: grpc.aio.ServicerContext) -> None:
        """Raises errors.PermissionDeniedError for a call that is not from one of `callers`."""
        if self.callers:
            check_caller(self.callers, context)


def edge_tls(settings: TlsSettings) -> ServerTls | None:
    """How a gateway listens; None: in plain text. Raises ConfigError for files that cannot be used."""
    files = edge_files(settings)
    return None if files is None else ServerTls(CertificateWatch(files, "server"))


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)], certificate.ca)
