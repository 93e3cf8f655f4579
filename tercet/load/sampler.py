"""Looks at client, server and host once a second while a point runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType

from .exchange import Clock
from .host import Gpus, HostCpu
from .loop_watch import LoopWatch
from .progress import Progress
from .record import ClientSample, Sample, ServerSample
from .target import Target

INTERVAL_S = 1.0


class Sampler:
    """A scope; `samples` are there when it is left. `elsewhere` are what other processes of the client say of
    themselves, `on_sample` hears of each."""

    def __init__(
        self,
        point: int,
        target: Target,
        progress: Progress,
        clock: Clock,
        gpus: Gpus,
        elsewhere: Mapping[int, ClientSample],
        on_sample: Callable[[Sample], None],
    ) -> None:
        self.samples: list[Sample] = []
        self._point = point
        self._target = target
        self._progress = progress
        self._clock = clock
        self._gpus = gpus
        self._elsewhere = elsewhere
        self._on_sample = on_sample
        self._host = HostCpu()
        self._watch = LoopWatch(clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Sampler:
        await self._watch.__aenter__()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        # Of a point that was over within the first second, too.
        if kind is None:
            self._take(None)
        await self._watch.__aexit__(kind, error, trace)

    async def _run(self) -> None:
        due_s = self._clock() + INTERVAL_S
        while True:
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            self._take(await self._target.look())
            # A look that took long is not made up for.
            due_s = max(due_s, self._clock() - INTERVAL_S) + INTERVAL_S

    def _take(self, server: ServerSample | None) -> None:
        lag_ms, share = self._watch.take()
        own = ClientSample(self._progress.running, self._progress.sent, self._progress.finished, lag_ms, share)
        client = together([own, *self._elsewhere.values()])
        sample = Sample(self._point, self._clock(), client, server, self._host.take(), self._gpus.take())
        self.samples.append(sample)
        self._on_sample(sample)


def together(samples: list[ClientSample]) -> ClientSample:
    """Several processes as one client, which is as late as its latest and as busy as its busiest."""
    return ClientSample(
        running=sum(each.running for each in samples),
        sent=sum(each.sent for each in samples),
        finished=sum(each.finished for each in samples),
        loop_lag_ms=max(each.loop_lag_ms for each in samples),
        cpu_share=max(each.cpu_share for each in samples),
    )
