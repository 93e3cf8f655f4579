"""Faults on a running mesh, one at a time, and what must hold behind each.

A cell of the matrix is what is done to whom under which load. Behind it each client has had one end, and one that the
fault explains; what it got is a beginning of what it would have got undisturbed; a new request is served; nobody has a
request, a sequence or a block any more; the ledger has one row for each request, which is closed and says what its
client got; and no log complains.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.books import Books
from bench.fault_deeds import DATABASE_FAULTS, LONG_PAUSE_S, do, kill
from bench.fault_mesh import STARTED_S, FaultMesh
from bench.fault_streams import Stream, follow, judge, judge_entries
from tercet import errors
from tercet.client import AsyncClient
from tercet.ledger.ledger import LEASE_S

NUM_STREAMS = 64
# From the fault until each client has had its end, in seconds.
ENDED_S = 60.0
# Rows of a gateway that was killed are closed when it has not said for LEASE_S (tercet/ledger) that it lives.
BOOKS_S = LEASE_S + 15.0
_PROBE_S = 0.05
_PROBED_S = 60.0


@dataclass(frozen=True, slots=True)
class Cell:
    """`fault` done to `subject`: a service, the connections of a cut being those above it, or the ledger's database, by
    its kind."""

    subject: str
    fault: str
    streaming: bool
    # A fault of the database, from before the load until a process that was killed is started again.
    beside: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.subject} {'streaming' if self.streaming else 'idle'}"

    @property
    def what(self) -> str:
        """Of the fault."""
        return f"{self.fault} beside database: {self.beside}" if self.beside else self.fault


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds from the fault until the last client had its end, until a new request was served, and until all was as
    before. `problems` are what must not be."""

    cell: Cell
    ends: Mapping[str, int]
    ended_s: float | None
    served_s: float
    whole_s: float
    problems: tuple[str, ...]


# The ends of clients that a fault explains, by subject and fault, beside "finished".
_EXPLAINED: Mapping[tuple[str, str], set[str]] = {
    ("gateway", "kill"): {"GATEWAY_LOST"},
    ("gateway", "cut"): {"GATEWAY_LOST"},
    ("gateway", "half-open"): {"GATEWAY_LOST"},
    ("gateway", "stop"): {"DRAINING", "GATEWAY_LOST"},
    ("gateway", "long stall"): {"GATEWAY_LOST"},
    ("gateway", "long hang"): {"GATEWAY_LOST", "SCHEDULER_LOST"},
    ("scheduler", "kill"): {"SCHEDULER_LOST"},
    ("scheduler", "cut"): {"SCHEDULER_LOST"},
    ("scheduler", "half-open"): {"SCHEDULER_LOST"},
    ("scheduler", "stop"): {"DRAINING", "SCHEDULER_LOST"},
    ("scheduler", "long stall"): {"SCHEDULER_LOST"},
    ("scheduler", "long hang"): {"SCHEDULER_LOST"},
}
SUBJECTS = ("gateway", "scheduler", "worker")


def cells(faults: Sequence[str]) -> list[Cell]:
    """Each of them done to every service, under either load."""
    return [Cell(subject, fault, streaming) for fault in faults for subject in SUBJECTS for streaming in (False, True)]


def database_cells(kind: str) -> list[Cell]:
    """All that can be done to a database of a kind, and a gateway that is killed beside one that is broken."""
    found = [Cell(kind, fault, streaming=True) for fault in DATABASE_FAULTS[kind]]
    return [*found, Cell("gateway", "kill", streaming=True, beside=found[-1].fault)]


class Matrix:
    """Cells on one mesh, one after the other."""

    def __init__(self, mesh: FaultMesh) -> None:
        self._mesh = mesh
        self._books = Books(mesh.database.where)
        self._num_runs = 0
        self._undisturbed: dict[int, tuple[int, ...]] = {}
        # Faults of workers take turns, so that each has been the broken one.
        self._turn = 0

    async def run(self, cell: Cell) -> Result:
        """Breaks the mesh, waits until it is whole again, and judges. Raises TimeoutError if it never is."""
        problems: list[str] = []
        if cell.streaming and not self._undisturbed:
            await self._learn()
        self._mesh.complaints()
        broken = contextlib.ExitStack()
        if cell.beside:
            broken.enter_context(self._mesh.database.broken(cell.beside))
        streams = self._streams() if cell.streaming else []
        async with AsyncClient(self._mesh.address) as client:
            tasks = [asyncio.create_task(follow(client, stream)) for stream in streams]
            try:
                # All on their way, none near its end.
                await asyncio.wait_for(asyncio.gather(*(stream.begun.wait() for stream in streams)), ENDED_S)
                began = time.monotonic()
                done = asyncio.create_task(self._do(cell, broken))
                served = asyncio.create_task(self._until_served(began))
                ended_s = await self._until_ended(tasks, began, problems)
                await done
                served_s = await served
            finally:
                broken.close()
                for task in tasks:
                    task.cancel()
        await asyncio.to_thread(self._mesh.wait_for, self._mesh.at_rest, f"all is as before {cell}", STARTED_S)
        whole_s = time.monotonic() - began
        entries = await asyncio.to_thread(self._books.closed, [stream.request_id for stream in streams], BOOKS_S)
        complaints = self._mesh.complaints()
        # What a gateway knew of an end in its last moment is lost with it.
        at_gateway = cell.subject == "gateway"
        killed = at_gateway and cell.fault == "kill"
        for stream in streams:
            explained = _EXPLAINED.get((cell.subject, cell.fault), set())
            problems += judge(stream, self._undisturbed[stream.seed], explained)
            rows = entries.get(stream.request_id, ())
            problems += judge_entries(stream, rows, may_be_lost=killed, whole=not at_gateway)
        # A database that was ended is missed.
        missed = cell.subject == "postgresql" and cell.fault in ("kill", "stop")
        problems += [f"complaint: {line}" for line in complaints if not (missed and '"ledger_lost"' in line)]
        ends = Counter(end for stream in streams for end in stream.ends)
        return Result(cell, ends, ended_s if streams else None, served_s, whole_s, tuple(problems))

    def close(self) -> None:
        """Lets the ledger go."""
        self._books.close()

    def _streams(self) -> list[Stream]:
        self._num_runs += 1
        return [Stream(f"run-{self._num_runs}-{seed}", seed) for seed in range(NUM_STREAMS)]

    async def _learn(self) -> None:
        """What each seed gets when nothing breaks."""
        streams = self._streams()
        async with AsyncClient(self._mesh.address) as client:
            await asyncio.gather(*(follow(client, stream) for stream in streams))
        assert all(stream.ends == ["finished"] for stream in streams), [stream.ends for stream in streams]
        self._undisturbed = {stream.seed: tuple(stream.token_ids) for stream in streams}

    async def _until_ended(self, tasks: list[asyncio.Task[None]], began: float, problems: list[str]) -> float:
        if tasks:
            _, waiting = await asyncio.wait(tasks, timeout=ENDED_S + LONG_PAUSE_S)
            problems += [
                f"a client without an end: seed {index}" for index, task in enumerate(tasks) if task in waiting
            ]
        return time.monotonic() - began

    async def _until_served(self, began: float) -> float:
        """Asks again and again, as a client that got a retryable error would."""
        while True:
            # Each time a connection of its own: what is left of one that broke is not the mesh's.
            async with AsyncClient(self._mesh.address) as client:
                try:
                    await client.generate_once("hello", max_tokens=1, timeout_s=5)
                    return time.monotonic() - began
                except errors.RequestError:
                    if time.monotonic() - began > _PROBED_S + LONG_PAUSE_S:
                        raise
            await asyncio.sleep(_PROBE_S)

    async def _do(self, cell: Cell, broken: contextlib.ExitStack) -> None:
        """Without blocking: the clients are on this loop. `broken` is the database, if it is."""
        name = cell.subject
        if name == "worker":
            name = self._mesh.workers[self._turn % len(self._mesh.workers)]
            self._turn += 1
        if cell.beside:
            await kill(self._mesh, name, mend=broken.close)
        else:
            await do(self._mesh, name, cell.fault)
