"""A whole run: every point of the workload's sweep against one server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .asks import Share, check_fits
from .classes import check_known
from .endpoint import Endpoint, open_target
from .environment import environment_of
from .folder import Run
from .host import Gpus
from .other_processes import OtherProcesses
from .point import Alone, PointResult, Setting, run_point
from .progress import Progress
from .record import Sample
from .sources import make_source
from .summary import VERSION, PointSummary, Summary, summarize
from .tally import Tally
from .target import Target
from .workload import Workload


class Watcher(Protocol):
    """Who follows a run while it goes on."""

    def begin(self, point: int, offered_per_s: float | None) -> None:
        """A point begins."""

    def sample(self, sample: Sample, progress: Progress) -> None:
        """A second has passed, or the point is over. `progress` is of this process; `sample` of all of the client."""

    def end(self, summary: PointSummary) -> None:
        """A point is over."""


@dataclass(frozen=True, slots=True)
class Unwatched:
    """A watcher that does nothing."""

    def begin(self, point: int, offered_per_s: float | None) -> None:
        """Nothing."""

    def sample(self, sample: Sample, progress: Progress) -> None:
        """Nothing."""

    def end(self, summary: PointSummary) -> None:
        """Nothing."""


# Gets each point as a run of its own.
Keep = Callable[[Run], None]


async def run(
    workload: Workload,
    endpoint: Endpoint,
    *,
    processes: int = 1,
    watcher: Watcher | None = None,
    keep: Keep | None = None,
    command: str = "",
) -> Run:
    """Sends all that the workload asks for, by so many processes, this one included, and says what became of it; to
    `keep` of each point as soon as it is over.

    Needs a loop of its own while it runs: whatever else is done there makes the client late. Raises WorkloadError,
    LoadError if the server cannot be measured; what becomes of requests is in the rows, whatever it is.
    """
    # The same workload again is the same prompts, and none of them is to be in the cache from before.
    endpoint = replace(endpoint, cache_salt=endpoint.cache_salt or secrets.token_hex(8))
    async with open_target(endpoint) as target, OtherProcesses(workload, endpoint, processes - 1) as others:
        return await run_on(
            workload, target, is_local=endpoint.is_local, started_with=endpoint.started_with, others=others,
            watcher=watcher, keep=keep, command=command,
        )  # fmt: skip


async def run_on(
    workload: Workload,
    target: Target,
    *,
    is_local: bool = True,
    started_with: str = "",
    others: OtherProcesses | None = None,
    watcher: Watcher | None = None,
    keep: Keep | None = None,
    command: str = "",
    now: Callable[[], float] = time.monotonic,
) -> Run:
    """The same on an open target; `now` is the clock of all times."""
    watcher = watcher or Unwatched()
    gpus = Gpus()
    described = await target.describe()
    check_fits(workload, described.max_model_len)
    if described.classes:
        check_known(workload, described.classes)
    limits = workload.slo or await target.limits()
    source = await make_source(workload, target, described)
    setting = Setting(workload, target, described, source, limits, gpus, now)
    written = replace(workload, slo=limits).to_data()
    environment = environment_of(described, target.name, gpus, is_local=is_local, started_with=started_with)
    summary = Summary(VERSION, command, written, environment, ())
    results: list[PointResult] = []
    summaries: list[PointSummary] = []
    for point, rate in enumerate(workload.rates):
        offered = workload.how().mean_rate(rate)
        watcher.begin(point, offered)
        results.append(await _point(setting, point, others, watcher))
        summaries.append(
            summarize(
                results[-1].rows,
                results[-1].samples,
                results[-1].gaps,
                point=point,
                offered_per_s=offered,
                warm_up_s=workload.warm_up_s,
                # Behind the last one of so many no more were due.
                until_s=workload.duration_s if len(results[-1].rows) != workload.requests else 0.0,
            )
        )
        if keep is not None:
            keep(Run(replace(summary, points=(summaries[-1],)), results[-1].rows, results[-1].samples))
        watcher.end(summaries[-1])
    return Run(
        replace(summary, points=tuple(summaries)),
        tuple(row for result in results for row in result.rows),
        tuple(sample for result in results for sample in result.samples),
    )


async def _point(setting: Setting, point: int, others: OtherProcesses | None, watcher: Watcher) -> PointResult:
    progress = Progress()

    def on_sample(sample: Sample) -> None:
        watcher.sample(sample, progress)

    if others is None:
        return await run_point(setting, point, Share(), Alone(setting.now), progress, on_sample)
    others.begin(point, setting.limits)
    own = await run_point(setting, point, Share(0, 1 + others.count), others, progress, on_sample)
    return merged([own, *others.results])


def merged(results: Sequence[PointResult]) -> PointResult:
    """What several processes saw of one point; samples are the first one's, which has those of all."""
    gaps = Tally()
    for result in results:
        gaps.merge(result.gaps)
    rows = sorted((row for result in results for row in result.rows), key=lambda row: row.index)
    return PointResult(tuple(rows), gaps, results[0].samples)
