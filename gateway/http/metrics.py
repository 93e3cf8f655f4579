"""The gateway's metrics at the port of its HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from tercet.metrics.exposition import expose

from ..caller import Caller
from ..guard import operator_only
from .exchange import Exchange


class Metrics:
    """For operators; where nobody keeps tenants, for everyone."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    async def read(self, exchange: Exchange, caller: Caller, _body: Mapping[str, Any]) -> None:
        """All of them. Raises PermissionDeniedError."""
        operator_only(caller)
        body, kind = await asyncio.to_thread(expose, self._registry, exchange.headers.get("accept", ""))
        await exchange.answer(200, body, {"cache-control": "no-store"}, kind)
