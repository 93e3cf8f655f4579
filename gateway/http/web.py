"""The console: a page with its files, and what it shows of the mesh. The page itself is a client of the API like any
other, and holds nothing that needs a key; what it asks for does."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tercet import __version__
from tercet.mesh_info import from_fleet
from tercet.traffic import from_traffic
from tercet.v1 import operations_pb2 as pb

from ..caller import Caller
from ..guard import operator_only
from ..operations_service import OperationsService
from .exchange import Exchange, encode_json

FOLDER = Path(__file__).parents[1] / "web"
INDEX = "index.html"

# Tenants that the view of the mesh has room for.
MAX_TENANTS = 20

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, nothing written into the page, nothing made of text but text; and nobody frames it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        # Asked for each time, sent if it has changed: a page never has files of two versions.
        "cache-control": "no-cache",
    }
)
_NOT_KEPT = {"cache-control": "no-store"}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page, with its media type and the tag of its content."""

    body: bytes
    kind: str
    tag: str


class Web:
    """The endpoints of the console. `classes` are the traffic classes of the mesh."""

    def __init__(self, operations: OperationsService, classes: Iterable[str]) -> None:
        self._operations = operations
        self._classes = tuple(classes)
        self._files = read_files(FOLDER)

    @property
    def paths(self) -> Iterable[str]:
        """Where the files are."""
        return self._files.keys()

    async def file(self, exchange: Exchange, _caller: Caller, _body: Mapping[str, Any]) -> None:
        """One of the files."""
        file = self._files[exchange.scope["path"]]
        headers = {**_HEADERS, "etag": file.tag}
        if file.tag in (
            each.strip().removeprefix("W/") for each in exchange.headers.get("if-none-match", "").split(",")
        ):
            await exchange.answer(304, b"", {**headers, "content-length": str(len(file.body))}, file.kind)
        else:
            await exchange.answer(200, file.body, headers, file.kind)

    async def about(self, exchange: Exchange, caller: Caller, _body: Mapping[str, Any]) -> None:
        """What the page offers its user: the classes that requests may name."""
        classes = caller.plan.classes or self._classes
        await exchange.answer(200, encode_json({"version": __version__, "classes": classes}), _NOT_KEPT)

    async def mesh(self, exchange: Exchange, caller: Caller, _body: Mapping[str, Any]) -> None:
        """Fleet and traffic, as `tercet top --json` has them. Raises PermissionDeniedError but for operators."""
        operator_only(caller)
        fleet, traffic = await asyncio.gather(
            self._operations.get_fleet(pb.GetFleetRequest(), caller),
            self._operations.get_traffic(pb.GetTrafficRequest(max_tenants=MAX_TENANTS), caller),
        )
        data = {"fleet": dataclasses.asdict(from_fleet(fleet)), "traffic": dataclasses.asdict(from_traffic(traffic))}
        await exchange.answer(200, encode_json(data), _NOT_KEPT)


def read_files(folder: Path) -> Mapping[str, File]:
    """The files of the page by their paths, of which the page's own is the root."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _KINDS:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            files["/" if path.name == INDEX else f"/console/{path.name}"] = File(body, _KINDS[path.suffix], tag)
    return files
