"""How whoever starts a service asks it for its health, with no certificate but those that the service has."""

from __future__ import annotations

from .certificate import read_certificate
from .client import ClientTls
from .mesh import mesh_identity
from .settings import TlsSettings, edge_files

# Who dials the services of the mesh.
_CALLERS = {"scheduler": "gateway", "worker": "scheduler"}


def probe_tls(settings: TlsSettings, service: str) -> ClientTls | None:
    """How to dial a service of these settings from its own host; None: in plain text. Raises ConfigError."""
    if service in _CALLERS:
        identity = mesh_identity(settings, _CALLERS[service])
        return None if identity is None else identity.dialling(service)
    files = edge_files(settings)
    if files is None:
        return None
    shown = read_certificate(files, "server")
    # Its CA may be known to clients alone, and its name not be that of the address; this is it, whatever it is called.
    return ClientTls(shown.chain, server_name=shown.names[0].replace("*", "any"))
