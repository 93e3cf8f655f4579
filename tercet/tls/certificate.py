"""A certificate with its key, read from PEM files and checked before anything is done with it.

Whether they fit each other, are of their CA and in force is what a TLS handshake with itself says, in memory.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tercet.errors import ConfigError

from .settings import CertificateFiles

# Which end of a connection shows the certificate first of all.
End = Literal["server", "client"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts. `names` are the DNS names and IP addresses it is for, `ends_at` when it expires, in seconds since the
    epoch."""

    chain: bytes
    key: bytes = field(repr=False)
    ca: bytes | None
    names: tuple[str, ...]
    ends_at: float


def read_certificate(files: CertificateFiles, end: End) -> Certificate:
    """Raises ConfigError, naming the setting, for files that cannot be read or used by that end."""
    chain = _read(f"{files.prefix}certificate", files.certificate)
    key = _read(f"{files.prefix}key", files.key)
    ca = _read(f"{files.prefix}ca", files.ca) if files.ca else None
    shown = _verified(files, end)
    names = tuple(value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    if not names:
        raise ConfigError(
            f"{files.prefix}certificate", f"{files.certificate} is for no host: it has no subjectAltName with one"
        )
    return Certificate(chain, key, ca, names, ssl.cert_time_to_seconds(shown["notAfter"]))


def stamp(files: CertificateFiles) -> tuple[object, ...]:
    """Another value after any of the files was changed or replaced."""
    return tuple(_stamp(path) for path in (files.certificate, files.key, files.ca) if path)


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno
    # The last: when its owner or mode was changed, so that it may be readable now.
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def _read(key: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(key, f"cannot read {path}: {error.strerror}") from error


def _verified(files: CertificateFiles, end: End) -> Any:
    """The certificate, decoded by whoever sees it at the other end of a connection. Raises ConfigError."""
    setting = f"{files.prefix}certificate"
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shows, checks = (server, client) if end == "server" else (client, server)
    client.check_hostname = False
    client.verify_mode = server.verify_mode = ssl.CERT_NONE
    checks.verify_mode = ssl.CERT_REQUIRED
    # A certificate of a CA that only clients know is taken for its own: what is left to check is its time.
    checks.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def refuse_password() -> bytes:
        raise ConfigError(f"{files.prefix}key", f"{files.key} is encrypted; nobody is there to type a password")

    try:
        for context in {shows, server}:
            context.load_cert_chain(files.certificate, files.key, password=refuse_password)
    # Also what was there a moment ago: whoever renews it may remove it first.
    except OSError as error:
        problem = f"{files.certificate} is no PEM certificate to which the key in {files.key} belongs ({_why(error)})"
        raise ConfigError(setting, problem) from error
    try:
        checks.load_verify_locations(files.ca or files.certificate)
    except OSError as error:
        raise ConfigError(f"{files.prefix}ca", f"{files.ca} has no PEM certificate ({_why(error)})") from error
    try:
        return _shake_hands(server, client, end)
    except ssl.SSLError as error:
        raise ConfigError(setting, f"{files.certificate} cannot be used: {_why(error)}") from error


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, end: End) -> Any:
    """The certificate of one end as the other sees it. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = {"client": client.wrap_bio(down, up), "server": server.wrap_bio(up, down, server_side=True)}
    waiting = True
    while waiting:
        waiting = False
        for each in ends.values():
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
    return ends["client" if end == "server" else "server"].getpeercert()


def _why(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    told = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
    return (told or str(error)).replace("_", " ").lower()
