"""A mesh of real processes for what the documents and examples do, and the gateway that fails as it is told."""

from tests.e2e.conftest import mesh
from tests.tercet.conftest import gateway

__all__ = ["gateway", "mesh"]
