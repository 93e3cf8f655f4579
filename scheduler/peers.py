"""The other schedulers of the mesh: a stream to each, on which it says where it stands.

Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
import structlog

from tercet.dialer import Dialer
from tercet.mesh.v1 import scheduler_pb2, scheduler_pb2_grpc

from .standing import Standing

log = structlog.get_logger()

# One of which nothing was heard for so long is not there: a connection that broke has come back by then.
ABSENT_SECONDS = 1.0
RETRY_SECONDS = 0.2


class Peers:
    """What was heard of each last. `clock` gives seconds."""

    def __init__(self, dialers: Sequence[Dialer], clock: Callable[[], float]) -> None:
        self._dialers = dialers
        self._clock = clock
        self._heard: dict[str, Standing] = {}
        # Since when the stream to an address is down; not in here: it is up.
        self._down = {dialer.address: clock() for dialer in dialers}

    def __len__(self) -> int:
        return len(self._dialers)

    async def run(self, on_change: Callable[[], None]) -> None:
        """Until cancelled, also where there are none."""
        watches = [self._watch(dialer, on_change) for dialer in self._dialers]
        await asyncio.gather(asyncio.Event().wait(), *watches)

    def heard(self) -> list[Standing]:
        """Of those that are there."""
        return [standing for address, standing in self._heard.items() if not self._absent(address)]

    @property
    def unsure(self) -> bool:
        """Whether there may be one that has not been heard of yet."""
        return any(address not in self._heard and not self._absent(address) for address in self._down)

    def _absent(self, address: str) -> bool:
        down_at = self._down.get(address)
        if down_at is None:
            return False
        standing = self._heard.get(address)
        return (standing is not None and standing.leaving) or self._clock() >= down_at + ABSENT_SECONDS

    async def _watch(self, dialer: Dialer, on_change: Callable[[], None]) -> None:
        try:
            while True:
                await dialer.renew()
                problem = await self._listen(dialer, on_change)
                if dialer.address not in self._down:
                    self._down[dialer.address] = self._clock()
                    log.info("peer_lost", address=dialer.address, problem=problem)
                on_change()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await dialer.close()

    async def _listen(self, dialer: Dialer, on_change: Callable[[], None]) -> str:
        """One life of the stream. Returns why it ended."""
        stub = scheduler_pb2_grpc.SchedulerStub(dialer.channel)
        call = stub.WatchStanding(scheduler_pb2.WatchStandingRequest())
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._down.pop(dialer.address, None)
                standing = Standing(message.started, message.term, message.leaving)
                if self._heard.get(dialer.address) != standing:
                    log.info("peer_stands", address=dialer.address, term=standing.term, leaving=standing.leaving)
                self._heard[dialer.address] = standing
                on_change()
            return f"{(await call.code()).name}"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
