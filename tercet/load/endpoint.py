"""Where a server is that is to be measured, and how it is reached. Goes from one process of the client to the next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tercet.client import ClientTls
from tercet.public_bind import is_public

from .grpc_target import GrpcTarget
from .openai_target import OpenAiTarget
from .target import Target


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A gateway's `address`, or the URL of an OpenAI server in `openai`. `api_key` is that of requests whose tenant has
    none, and of who looks at the mesh."""

    address: str = ""
    openai: str = ""
    api_key: str = field(default="", repr=False)
    tls: ClientTls | None = None
    # Empty: the first that it serves.
    model: str = ""
    # Of each key, over gRPC.
    connections: int = 1
    # Sent with every request: what else is in the server's prefix cache stays out of it.
    cache_salt: str = ""
    # Its command line or settings, as whoever started it says: for the record of a run.
    started_with: str = ""

    @property
    def is_local(self) -> bool:
        """Whether client and server are on one host, as far as the address says."""
        host = self.openai.partition("://")[2].partition("/")[0] if self.openai else self.address
        return not is_public(host.rpartition(":")[0].strip("[]") or host)


@asynccontextmanager
async def open_target(endpoint: Endpoint) -> AsyncIterator[Target]:
    """Its target, for this event loop. Raises LoadError."""
    if endpoint.openai:
        url, key = endpoint.openai, endpoint.api_key
        async with OpenAiTarget(
            url, api_key=key, tls=endpoint.tls, model=endpoint.model, cache_salt=endpoint.cache_salt
        ) as http_target:
            yield http_target
        return
    async with GrpcTarget(
        endpoint.address,
        api_key=endpoint.api_key,
        tls=endpoint.tls,
        model=endpoint.model,
        connections=endpoint.connections,
        cache_salt=endpoint.cache_salt,
    ) as target:
        yield target
