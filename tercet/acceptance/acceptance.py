"""A whole acceptance: what a contract's lines need is observed of a server, then every line is judged."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tercet import errors
from tercet.client import AsyncClient
from tercet.ledger.row import Cancelled
from tercet.load import runner
from tercet.load.endpoint import Endpoint, open_target
from tercet.load.folder import Run, write_run
from tercet.load.runner import Unwatched, Watcher
from tercet.load.sources import make_source
from tercet.load.target import Described, Target
from tercet.load.workload import Workload
from tercet.load.workload_error import WorkloadError

from .answerers import open_answerer
from .faults import FaultsSeen, commit
from .judging import Judged, Observed, UnknownError, judge, most_qualified_per_s
from .measure import Basis
from .outputs import observe, record
from .references import VERSION, References, read_references, write_references
from .spec import Spec

_CONTROL_S = 10.0
# Of faults: as many cancels as a gateway remembers.
_CANCELS = 1_000


class Follower(Protocol):
    """Who follows an acceptance while it goes on."""

    def begin(self, what: str) -> None:
        """A part of it begins."""

    def watch(self, workload: Workload) -> AbstractContextManager[Watcher]:
        """Who follows a load."""


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """A follower that does nothing."""

    def begin(self, what: str) -> None:
        """Nothing."""

    def watch(self, workload: Workload) -> AbstractContextManager[Watcher]:  # noqa: ARG002
        """Nobody."""
        return nullcontext(Unwatched())


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of it, and of which server."""

    server: str
    model: str
    revision: str | None
    judged: tuple[Judged, ...]


async def accept(
    spec: Spec,
    endpoint: Endpoint,
    out: Path,
    *,
    processes: int = 1,
    follower: Follower | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Judgement:
    """Asks single questions first, then runs the loads, whose records get a folder each in `out`, then the faults.

    Raises LoadError if the server cannot be measured, or a file of the contract not be read; OSError.
    """
    follower = follower or Unfollowed()
    references = _references(spec)
    async with open_target(endpoint) as target:
        described = await target.describe()
        name = target.name
        observed = Observed()
        if any(line.measure.basis is Basis.OUTPUTS for line in spec.lines):
            follower.begin("single questions")
            async with open_answerer(endpoint, described.model) as answerer:
                observed = replace(observed, outputs=await observe(answerer, spec, references))
        for load in spec.needed_loads():
            follower.begin(f"load {load}")
            observed = await _loaded(spec, load, observed, endpoint, out, processes, follower)
        if any(line.measure.basis is Basis.FAULTS for line in spec.lines):
            follower.begin("clients that go away or read slowly")
            observed = replace(observed, faults=await _faults(spec, endpoint, target, described, clock))
    return Judgement(name, described.model, described.revision, judge(spec, observed))


async def record_references(spec: Spec, endpoint: Endpoint, path: Path) -> References:
    """Asks the questions of a contract and writes down what is said. Raises LoadError, also for a question that is not
    answered; OSError."""
    async with open_target(endpoint) as target:
        described = await target.describe()
    async with open_answerer(endpoint, described.model) as answerer:
        answers = await record(answerer, spec.outputs)
    for each in answers:
        if each.said.error:
            raise errors.LoadError(f"{each.question.text!r} is not answered: {each.said.error}")
    references = References(VERSION, described.model, described.revision, answers)
    write_references(path, references)
    return references


def _references(spec: Spec) -> References | None:
    if not spec.has_measure("wrong_references"):
        return None
    return read_references(Path(spec.outputs.references))


async def _loaded(
    spec: Spec, name: str, observed: Observed, endpoint: Endpoint, out: Path, processes: int, follower: Follower
) -> Observed:
    """With the run of one more load, or why it could not be run."""
    load = spec.loads[name]
    rate = None
    if load.times:
        try:
            rate = load.times * most_qualified_per_s(observed.runs.get(load.of), spec.client.max_lag_ms)
        except UnknownError as error:
            return replace(observed, not_run={**observed.not_run, name: str(error)})
    workload = load.workload(spec.slo, rate)
    # A target of its own: what one remembers of a mesh is of one load.
    try:
        with follower.watch(workload) as watcher:
            run = await runner.run(workload, endpoint, processes=processes, watcher=watcher)
    except WorkloadError:
        raise
    except errors.LoadError as error:
        # It was there a moment ago: what is left on it is still to be looked at.
        return replace(observed, not_run={**observed.not_run, name: str(error)})
    folder = out / name
    write_run(folder, run)
    runs: dict[str, Run] = {**observed.runs, name: run}
    return replace(observed, runs=runs, folders={**observed.folders, name: str(folder)})


async def _faults(
    spec: Spec, endpoint: Endpoint, target: Target, described: Described, clock: Callable[[], float]
) -> FaultsSeen:
    source = await make_source(Workload(requests=1), target, described)
    async with _cancels(endpoint) as cancels:
        return await commit(target, spec.faults, source, cancels, clock)


@asynccontextmanager
async def _cancels(endpoint: Endpoint) -> AsyncIterator[GatewayCancels | NoCancels]:
    if endpoint.openai:
        yield NoCancels()
        return
    async with AsyncClient(endpoint.address, api_key=endpoint.api_key, tls=endpoint.tls) as client:
        yield GatewayCancels(client)


class GatewayCancels:
    """As a gateway tells them."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def cancellations(self) -> Sequence[Cancelled] | None:
        """The latest; None to who may not see them."""
        try:
            return await self._client.cancellations(limit=_CANCELS, timeout_s=_CONTROL_S)
        except errors.RequestError:
            return None


class NoCancels:
    """Of a server that tells none."""

    async def cancellations(self) -> Sequence[Cancelled] | None:
        """Nobody knows."""
        return None
