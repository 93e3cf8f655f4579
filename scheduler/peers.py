"""The other schedulers of the mesh: a stream to each, on which it says where it stands, and a question each second
whether it still does.

Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

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
# So often each is asked, and one that hangs is not there either once it has owed an answer for so many of these. Far
# less than it takes pings to find that out, so that gateways have where to go by the time they do.
ASK_SECONDS = 1.0
SILENT_LOOKS = 5


class Peers:
    """What was heard of each last. `clock` gives seconds."""

    def __init__(self, dialers: Sequence[Dialer], clock: Callable[[], float]) -> None:
        self._dialers = dialers
        self._clock = clock
        self._heard: dict[str, Standing] = {}
        # Since when the stream to an address is down; not in here: it is up.
        self._down = {dialer.address: clock() for dialer in dialers}
        # Those that hang.
        self._silent: set[str] = set()

    def __len__(self) -> int:
        return len(self._dialers)

    async def run(self, on_change: Callable[[], None]) -> None:
        """Until cancelled, also where there are none."""
        watches = [self._watch(dialer, on_change) for dialer in self._dialers]
        await asyncio.gather(asyncio.Event().wait(), *watches)

    def heard(self) -> list[Standing]:
        """Of those that are there."""
        return [standing for address, standing in self._heard.items() if not self._absent(address)]

    async def answers(self) -> list[Standing]:
        """Where those stand that say so within ASK_SECONDS."""
        asking = [asyncio.create_task(_ask(each)) for each in self._dialers if each.address not in self._down]
        try:
            if asking:
                await asyncio.wait(asking, timeout=ASK_SECONDS)
            done = [task for task in asking if task.done() and not task.cancelled()]
            return [standing for task in done if (standing := task.result()) is not None]
        finally:
            await _end(asking)

    @property
    def unsure(self) -> bool:
        """Whether there may be one that has not been heard of yet."""
        return any(address not in self._heard and not self._absent(address) for address in self._down)

    def _absent(self, address: str) -> bool:
        if address in self._silent:
            return True
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
        call = _watch_standing(dialer)
        asking = asyncio.create_task(self._keep_asking(dialer, on_change))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                self._down.pop(dialer.address, None)
                self._silent.discard(dialer.address)
                standing = _standing(message)
                if self._heard.get(dialer.address) != standing:
                    log.info("peer_stands", address=dialer.address, term=standing.term, leaving=standing.leaving)
                self._heard[dialer.address] = standing
                on_change()
            return f"{(await call.code()).name}"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
            await _end([asking])

    async def _keep_asking(self, dialer: Dialer, on_change: Callable[[], None]) -> None:
        """Looks are counted and not seconds: one that stood still itself has not missed an answer by that."""
        while True:
            asking, looks = asyncio.create_task(_ask(dialer)), 0
            try:
                while not (await asyncio.wait({asking}, timeout=ASK_SECONDS))[0]:
                    looks += 1
                    if looks == SILENT_LOOKS:
                        log.warning("peer_silent", address=dialer.address, seconds=looks * ASK_SECONDS)
                        self._silent.add(dialer.address)
                        on_change()
                if dialer.address in self._silent and asking.result() is not None:
                    self._silent.discard(dialer.address)
                    on_change()
            finally:
                await _end([asking])
            await asyncio.sleep(ASK_SECONDS)


def _watch_standing(dialer: Dialer) -> grpc.aio.UnaryStreamCall:
    return scheduler_pb2_grpc.SchedulerStub(dialer.channel).WatchStanding(scheduler_pb2.WatchStandingRequest())


def _standing(message: scheduler_pb2.Standing) -> Standing:
    return Standing(message.started, message.term, message.leaving)


async def _ask(dialer: Dialer) -> Standing | None:
    """Where one stands now, as it says itself, however long that takes; None if it cannot be asked."""
    call = _watch_standing(dialer)
    try:
        message = await call.read()
        return None if message is grpc.aio.EOF else _standing(message)
    except (grpc.aio.AioRpcError, grpc.aio.UsageError):
        return None
    finally:
        call.cancel()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
