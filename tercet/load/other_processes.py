"""Other processes of the client, where one cannot send and read all that there is.

Each draws its share of the same requests. They speak over a pipe: what point begins, that all is drawn, when it starts,
how far they are, what they saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import MappingProxyType, TracebackType
from typing import Any

from tercet.errors import LoadError

from .asks import Share
from .endpoint import Endpoint, open_target
from .host import Gpus
from .point import PointResult, Setting, run_point
from .progress import Progress
from .record import ClientSample, ServerSample
from .slo import Slo
from .sources import make_source
from .target import Target
from .workload import Workload

# From the word that all are ready to the first request.
_LEAD_S = 0.1
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class _Begin:
    point: int
    share: Share
    limits: Mapping[str, Slo]


@dataclass(frozen=True, slots=True)
class _Start:
    at: float


@dataclass(frozen=True, slots=True)
class _Ready:
    pass


@dataclass(frozen=True, slots=True)
class _Failed:
    problem: str


class OtherProcesses:
    """`count` processes, as a scope, and the company of this one. `samples` are the latest of each, by its number;
    `results` what each saw of the point that is over."""

    def __init__(self, workload: Workload, endpoint: Endpoint, count: int) -> None:
        self.count = count
        self.samples: dict[int, ClientSample] = {}
        self.results: Sequence[PointResult] = ()
        self._workload = workload
        self._endpoint = endpoint
        # One for each pipe, which is read all the time.
        self._threads = ThreadPoolExecutor(max(1, count), thread_name_prefix="pipe")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._reading: list[asyncio.Task[PointResult]] = []
        self._ready: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> OtherProcesses:
        spawning = multiprocessing.get_context("spawn")
        for _ in range(self.count):
            here, there = spawning.Pipe()
            process = spawning.Process(target=_main, args=(there, self._workload, self._endpoint), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Threads that wait at a pipe wait for ever; what ends the process ends its end of the pipe.
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            await asyncio.to_thread(process.join, _STOP_S)
        await asyncio.gather(*self._reading, return_exceptions=True)
        self._threads.shutdown()
        for pipe in self._pipes:
            pipe.close()

    def begin(self, point: int, limits: Mapping[str, Slo]) -> None:
        """Each draws its share of a point's requests."""
        loop = asyncio.get_running_loop()
        self.samples.clear()
        self._ready = [loop.create_future() for _ in self._pipes]
        for number, pipe in enumerate(self._pipes):
            _send(pipe, _Begin(point, Share(number + 1, self.count + 1), limits))
        self._reading = [asyncio.create_task(self._read(number)) for number in range(self.count)]

    async def start(self) -> float:
        """Waits until all are ready, and says when they begin. Raises LoadError if one ends before."""
        for ready, reading in zip(self._ready, self._reading, strict=True):
            both: set[asyncio.Future[Any]] = {ready, reading}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                reading.result()
        at = time.monotonic() + _LEAD_S
        for pipe in self._pipes:
            _send(pipe, _Start(at))
        return at

    async def over(self) -> None:
        """Waits until each has said what it saw. Raises LoadError."""
        self.results = [await reading for reading in self._reading]

    async def _read(self, number: int) -> PointResult:
        while True:
            said = await asyncio.get_running_loop().run_in_executor(self._threads, _receive, self._pipes[number])
            if isinstance(said, PointResult):
                return said
            if isinstance(said, ClientSample):
                self.samples[number] = said
            elif isinstance(said, _Ready):
                self._ready[number].set_result(None)
            else:
                raise LoadError(said.problem if isinstance(said, _Failed) else "a process of the client has ended")


def _send(pipe: Connection, message: object) -> None:
    try:
        pipe.send(message)
    except OSError:
        raise LoadError("a process of the client has ended") from None


def _receive(pipe: Connection) -> Any:
    """The next message; None at the end."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def _main(pipe: Connection, workload: Workload, endpoint: Endpoint) -> None:
    """In the other process."""
    import uvloop

    from tercet.garbage import settle
    from tercet.open_files import allow_many

    allow_many()
    settle()
    try:
        uvloop.run(_take_part(pipe, workload, endpoint))
    except LoadError as error:
        with contextlib.suppress(OSError):
            pipe.send(_Failed(str(error)))
    except KeyboardInterrupt:
        # Told to all of the terminal's processes; the first one says so.
        os._exit(130)


class _Unseen:
    """A target that is looked at by another process."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.name = target.name
        self.describe = target.describe
        self.stream = target.stream
        self.tokenize = target.tokenize
        self.limits = target.limits

    async def look(self) -> ServerSample | None:
        return None


class _Company:
    """The first process and the rest of the others, as one of these sees them."""

    samples: Mapping[int, ClientSample] = MappingProxyType({})

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def start(self) -> float:
        self._pipe.send(_Ready())
        told = await asyncio.to_thread(_receive, self._pipe)
        if told is None:
            raise LoadError("the first process of the client has ended")
        return float(told.at)

    async def over(self) -> None:
        """Of the others' answers it has to know nothing."""


async def _take_part(pipe: Connection, workload: Workload, endpoint: Endpoint) -> None:
    async with open_target(endpoint) as target:
        described = await target.describe()
        source = await make_source(workload, target, described)
        while (begin := await asyncio.to_thread(_receive, pipe)) is not None:
            setting = Setting(workload, _Unseen(target), described, source, begin.limits, Gpus())
            company = _Company(pipe)
            result = await run_point(
                setting, begin.point, begin.share, company, Progress(), lambda sample: pipe.send(sample.client)
            )
            pipe.send(result)
