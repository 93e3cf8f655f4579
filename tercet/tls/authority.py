"""A private CA in a folder, and the certificates of a mesh. Needs the package cryptography, which running does not."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tercet.errors import StartupError

from .callers import name_of

CA = "ca"
EDGE = "edge"
CA_DAYS = 3650
# For clocks that differ.
_EARLIER = datetime.timedelta(hours=1)
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII | re.IGNORECASE)
_USAGE = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
          "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip


class Authority:
    """The CA whose files ca.pem and ca-key.pem are in `folder`. Others there are named in the same way."""

    def __init__(self, folder: Path) -> None:
        """Raises StartupError if there is none that can be read."""
        self._folder = folder
        try:
            self._certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
            key = serialization.load_pem_private_key((folder / f"{CA}-key.pem").read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "its files are not what `tercet tls init` writes"
            raise StartupError(f"there is no CA in {folder}: {why}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise StartupError(f"the CA in {folder} is not one that `tercet tls init` made")
        self._key = key

    @classmethod
    def create(cls, folder: Path, now: datetime.datetime) -> Authority:
        """Makes one. Raises StartupError if there is one already, or `folder` cannot be written."""
        if (folder / f"{CA}.pem").exists() or (folder / f"{CA}-key.pem").exists():
            raise StartupError(f"there is a CA in {folder} already; `tercet tls renew {folder}` makes new certificates")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tercet private CA")])
        certificate = (
            _builder(name, name, key, now, CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(folder, CA, key, certificate)
        return cls(folder)

    @staticmethod
    def check_hosts(hosts: Sequence[str]) -> None:
        """Raises StartupError for what no certificate can be for."""
        for host in hosts:
            _general(host)

    def issue_edge(self, hosts: Sequence[str], now: datetime.datetime, days: int) -> None:
        """Writes edge.pem and edge-key.pem: what gateways show clients who dial these names or addresses."""
        self._issue(EDGE, hosts, now, days, ExtendedKeyUsageOID.SERVER_AUTH)

    def issue_service(self, service: str, now: datetime.datetime, days: int) -> None:
        """Writes the files of a gateway, scheduler or worker: what it shows the others."""
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        self._issue(service, [name_of(service)], now, days, *usages)

    def edge_hosts(self) -> list[str]:
        """For which edge.pem is. Raises StartupError if it is not there."""
        path = self._folder / f"{EDGE}.pem"
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise StartupError(f"cannot tell for which hosts {path} is; name them with --host") from error
        addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        return [*names.get_values_for_type(x509.DNSName), *addresses]

    def _issue(
        self, stem: str, hosts: Sequence[str], now: datetime.datetime, days: int, *usages: x509.ObjectIdentifier
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Tercet {stem}")])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(name, self._certificate.subject, key, now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(self._folder, stem, key, certificate)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in _USAGE})


def _general(host: str) -> x509.GeneralName:
    """Raises StartupError for what is no name of a host."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise StartupError(f"{host!r} is no host; a name with other letters is written as xn--...")
    return x509.DNSName(host)


def _write(folder: Path, stem: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(folder / f"{stem}-key.pem", key.private_bytes(*form), 0o600)
        _replace(folder / f"{stem}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        raise StartupError(f"cannot write {folder}: {error.strerror}") from error


def _replace(path: Path, text: bytes, mode: int) -> None:
    """A running service that reads the file finds the old text or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
