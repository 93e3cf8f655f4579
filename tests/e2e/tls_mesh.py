"""A mesh that speaks TLS alone, with a CA of its own."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.mesh_layout import SERVICES
from tercet.tls.authority import Authority
from tercet.tls.client import ClientTls
from tercet.tls.probe import probe_tls
from tercet.tls.settings import TlsSettings

from ..tercet import certificates
from .conftest import Mesh


class TlsMesh(Mesh):
    """The certificates are in `folder`/pki, new ones in it after `renew`."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.pki = folder / "pki"
        self.authority = certificates.make(self.pki)
        self.settings: TlsSettings = certificates.settings(self.pki)
        given = {
            "TERCET_TLS_CERTIFICATE": self.settings.certificate,
            "TERCET_TLS_KEY": self.settings.key,
            "TERCET_TLS_MESH_CA": self.settings.mesh_ca,
            "TERCET_TLS_MESH_CERTIFICATE": self.settings.mesh_certificate,
            "TERCET_TLS_MESH_KEY": self.settings.mesh_key,
        }
        super().__init__(folder, {**given, **(settings or {})})

    def renew(self) -> None:
        """Another CA, and with it other certificates for all."""
        for path in self.pki.iterdir():
            path.rename(self.pki.parent / f"old-{path.name}")
        self.authority: Authority = certificates.make(self.pki)

    @property
    def tls(self) -> ClientTls:
        """How clients dial the gateway now."""
        return ClientTls.from_files(self.pki / "ca.pem")

    def health(self, name: str, service: str) -> int | None:
        """As of any mesh."""
        tls = probe_tls(self.settings, name)
        assert name in SERVICES
        assert tls is not None
        address = f"127.0.0.1:{self.ports[name]}"
        with grpc.secure_channel(address, tls.credentials(), options=tls.options()) as channel:
            try:
                stub = health_pb2_grpc.HealthStub(channel)
                return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=2).status)
            except grpc.RpcError:
                return None
