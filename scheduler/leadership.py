"""Leads the mesh whenever it is this scheduler's turn, and says where it stands.

Knows neither workers nor gateways.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from .peers import Peers
from .standing import Standing, leads

log = structlog.get_logger()

# Silence makes no event: so often the peers are looked at.
LOOK_SECONDS = 0.1
# One that leaves asks so often whether there is somebody to leave to.
ASK_AGAIN_SECONDS = 0.5


class Leadership:
    """`lead` has the workers, from a term on until it is cancelled; `part` ends the streams of the gateways before."""

    def __init__(
        self,
        peers: Peers,
        started: int,
        new_term: Callable[[], int],
        lead: Callable[[int], Coroutine[Any, Any, None]],
        part: Callable[[], Awaitable[None]],
    ) -> None:
        self.standing = Standing(started)
        self._peers = peers
        self._new_term = new_term
        self._lead = lead
        self._part = part
        # Set when something has changed; another one for what changes next.
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled. Raises what a bug raised, in `lead` or where peers are listened to."""
        watching = asyncio.create_task(self._peers.run(self._change))
        try:
            while True:
                await _first(watching, self._until(leading=True))
                self._say(replace(self.standing, term=self._new_term()))
                log.info("scheduler_leads", term=self.standing.term)
                await _first(watching, self._serve_term())
                log.info("scheduler_stands_by", leaving=self.standing.leaving)
                self._say(replace(self.standing, term=0))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def successor(self) -> None:
        """Waits for another one that would lead if this one left, and says so when it is asked; for ever, where there
        are no others."""
        while not any(self._succeeds(each) for each in await self._peers.answers()):
            await self._next_change(ASK_AGAIN_SECONDS if self._peers else None)

    def _succeeds(self, other: Standing) -> bool:
        return not other.leaving and other.started != self.standing.started

    async def leave(self) -> None:
        """Leads no more; returns when nothing is left of it."""
        self._say(replace(self.standing, leaving=True))
        while self.standing.term:
            await self._next_change()

    async def standings(self) -> AsyncIterator[Standing]:
        """Where this one stands: now, and after each change until it has left."""
        said = None
        while said is None or not said.leaving or said.term:
            if self.standing == said:
                await self._next_change()
            else:
                said = self.standing
                yield said

    async def _serve_term(self) -> None:
        leading = asyncio.create_task(self._lead(self.standing.term))
        try:
            await _first(leading, self._until(leading=False))
            await self._part()
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)

    async def _until(self, *, leading: bool) -> None:
        while (leads(self.standing, self._peers.heard()) and not self._holds_back) is not leading:
            await self._next_change(LOOK_SECONDS if self._peers else None)

    @property
    def _holds_back(self) -> bool:
        return not self.standing.term and self._peers.unsure

    def _say(self, standing: Standing) -> None:
        self.standing = standing
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next_change(self, limit_s: float | None = None) -> None:
        waiting = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({waiting}, timeout=limit_s)
        finally:
            waiting.cancel()


async def _first(endless: asyncio.Task[None], wait: Coroutine[Any, Any, None]) -> None:
    """Waits for `wait`. Raises what has ended a task that is not to end."""
    waiting = asyncio.create_task(wait)
    try:
        done, _ = await asyncio.wait({endless, waiting}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
