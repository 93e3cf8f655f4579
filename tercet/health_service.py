"""Serves grpc.health.v1: each name's state, and with a Check also the reasons; and who looks at a process for it. Knows
not what makes a name hold."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NoReturn

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tercet.health import LIVE, LOOK_SECONDS, NAMES, Conditions, Pressure, Reasons, high, look_at_room

log = structlog.get_logger()

# Trailing metadata of a Check: why a name does not hold.
REASON_KEY = "tercet-reason"
# What is longer is cut: some proxies take no more than 8 KB of metadata.
MAX_REASON_CHARS = 1024

_SERVING: int = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING is a name for which there is no reason why not."""

    def __init__(self) -> None:
        self._conditions: dict[str, Reasons] = {}
        self._ending = False
        # Set when a state has changed; there is another one for the next change.
        self._changed = asyncio.Event()

    def tell(self, conditions: Conditions) -> None:
        """What holds from now on of these names."""
        if not self._ending:
            self._tell(conditions)

    def end(self) -> None:
        """The service stops: nothing holds any more but that the process lives. What is told afterwards is ignored."""
        self._ending = True
        self._tell({name: ("it stops",) for name in self._conditions if name != LIVE})

    def _tell(self, conditions: Conditions) -> None:
        before = {name: self._state(name) for name in conditions}
        self._conditions.update(conditions)
        changed = [name for name, state in before.items() if self._state(name) != state]
        if changed:
            self._changed.set()
            self._changed = asyncio.Event()
        for name in changed:
            if name in NAMES and before[name] != _UNKNOWN and not self._ending:
                reasons = self._conditions[name]
                (log.warning if reasons else log.info)("health_changed", name=name, holds=not reasons, reasons=reasons)

    def _state(self, name: str) -> int:
        reasons = self._conditions.get(name)
        return _UNKNOWN if reasons is None else _NOT_SERVING if reasons else _SERVING

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """One name's state now."""
        reasons = self._conditions.get(request.service)
        if reasons is None:
            await _refuse(context, self._conditions)
        if reasons:
            context.set_trailing_metadata(((REASON_KEY, as_metadata("; ".join(reasons))),))
        return health_pb2.HealthCheckResponse(status=self._state(request.service))

    async def List(
        self, _request: health_pb2.HealthListRequest, _context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """All names' states now. Not every version of grpcio that will do knows this method."""
        states = {name: health_pb2.HealthCheckResponse(status=self._state(name)) for name in self._conditions}
        return health_pb2.HealthListResponse(statuses=states)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """One name's state, and each later one; of several in a moment the last."""
        told = None
        while True:
            changed = self._changed
            state = self._state(request.service)
            if state != told:
                await context.write(health_pb2.HealthCheckResponse(status=state))
                told = state
            else:
                await changed.wait()


class Teller(ABC):
    """Looks at a process and tells what it finds by `tell`: again and again, and at once when `changed` is set."""

    def __init__(self, tell: Callable[[Conditions], None], changed: asyncio.Event) -> None:
        self._tell = tell
        self._changed = changed
        self._stopping = False
        self._pressures: dict[str, Pressure] = {}

    @abstractmethod
    def look(self) -> Conditions:
        """All names now."""

    def stop(self) -> None:
        """The process takes nothing new."""
        self._stopping = True
        self._tell(self.look())

    async def run(self) -> NoReturn:
        """Tells until it is cancelled."""
        while True:
            self._changed.clear()
            self._tell(self.look())
            timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()

    def _crowded(self, counts: Mapping[str, int], now: float) -> Reasons:
        """Why there is no room, by refusals of each kind since the start; `now` is in seconds."""
        self._pressures = look_at_room(self._pressures, counts, now)
        return tuple(f"no room for {kind}" for kind in high(self._pressures))


async def _refuse(context: grpc.aio.ServicerContext, names: Conditions) -> NoReturn:
    known = ", ".join(name for name in names if name)
    await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no such name; there are {known}")
    raise AssertionError("context.abort returned")


def as_metadata(text: str) -> str:
    """As much of a text as metadata can hold: visible ASCII and spaces."""
    shown = "".join(character if " " <= character <= "~" else "?" for character in text)
    return shown if len(shown) <= MAX_REASON_CHARS else f"{shown[: MAX_REASON_CHARS - 3]}..."
