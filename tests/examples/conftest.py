"""Meshes of real processes for what the documents and examples do, and a gateway that fails as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tercet.tls.server import edge_tls
from tests.e2e.conftest import mesh
from tests.tercet import certificates
from tests.tercet.conftest import FakeGateway, gateway, serving

__all__ = ["gateway", "mesh"]


@pytest.fixture
def tls_gateway(tmp_path: Path) -> Iterator[tuple[FakeGateway, Path]]:
    """The same gateway with a certificate, and the file of the CA that has made it."""
    certificates.make(tmp_path)
    with serving(edge_tls(certificates.settings(tmp_path))) as fake:
        yield fake, tmp_path / "ca.pem"
