"""How a client dials with TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tercet.errors import StartupError


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM texts. Without `ca` the server's certificate must be of a public CA. `certificate` and `key` are shown to a
    server that asks for them. `server_name`, if not empty, stands in the server's certificate instead of the host that
    is dialled."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str = ""

    @classmethod
    def from_files(
        cls,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        server_name: str = "",
    ) -> ClientTls:
        """Raises StartupError for a file that cannot be read, or is not PEM, and a certificate without its key."""
        if (certificate is None) != (key is None):
            raise StartupError("a client's certificate needs its key, and a key its certificate")
        return cls(_read(ca), _read(certificate), _read(key), server_name)

    def credentials(self) -> grpc.ChannelCredentials:
        """What a channel is opened with."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)

    def options(self) -> list[tuple[str, str]]:
        """Options of such a channel."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    # What is none of it gRPC takes for nothing, and then says only that no connection came about.
    if b"-----BEGIN " not in text:
        raise StartupError(f"{path} is not a PEM file")
    return text
