"""What classes and tenants of a mesh ask for and get, as a client sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tercet.v1 import operations_pb2 as pb


@dataclass(frozen=True, slots=True)
class Kept:
    """How often one promise was kept, and how often not."""

    kept: int = 0
    broken: int = 0

    @property
    def part(self) -> float | None:
        """Kept of all; None if there was nothing to keep."""
        total = self.kept + self.broken
        return self.kept / total if total else None

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.kept + other.kept, self.broken + other.broken)


@dataclass(frozen=True, slots=True)
class Promises:
    """Of accepted requests: first token in time, mean time between tokens within the target, both and served."""

    ttft: Kept
    gap: Kept
    request: Kept


@dataclass(frozen=True, slots=True)
class Targets:
    """What a class promises, in seconds and percent of requests; 0 is no promise."""

    ttft_s: float
    ttft_percentile: float
    gap_s: float
    gap_percentile: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of durations in seconds; means nothing if `count` is 0."""

    count: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """What is there now."""

    requests_waiting: int
    tokens_waiting: int
    # Since when, in seconds, the oldest request that has not started has waited; None if there is none.
    oldest_s: float | None
    requests_running: int
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests and tokens since the start of the scheduler."""

    accepted: int
    served: int
    cancelled: int
    # By reason of the error.
    refused: Mapping[str, int]
    failed: Mapping[str, int]
    promises: Promises
    # Of requests that have got their first token; `cached` are those of them that a prefix cache had.
    prompt_tokens: int
    cached_tokens: int
    # Those of running requests included.
    generated_tokens: int
    # Of requests that have ended.
    wasted_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class ClassTraffic:
    """One traffic class; `recent`, `ttft` and `queue` are of the last minute."""

    # Empty for requests that were refused because their class was not known.
    name: str
    load: Load
    counts: Counts
    targets: Targets
    recent: Promises
    ttft: Spread
    queue: Spread


@dataclass(frozen=True, slots=True)
class TenantTraffic:
    """One tenant in one class."""

    # None for all that are gone; empty where nobody keeps tenants.
    tenant: str | None
    traffic_class: str
    load: Load
    counts: Counts


@dataclass(frozen=True, slots=True)
class ForecastQuality:
    """How good the forecasts of first tokens of one pool were lately."""

    model: str
    model_revision: str
    # Those that came true; 0: the errors mean nothing.
    count: int
    # As parts of the actual time: half were off by less; the median with its sign, above 0 for too much.
    median_error: float
    median_bias: float
    # Requests that were to be refused for it and were let in since the start, and those of them that were in time.
    tried: int
    tried_in_time: int


@dataclass(frozen=True, slots=True)
class CancelTraffic:
    """Cancels of one origin; `freed`: from their arrival at the scheduler until their blocks were free."""

    origin: str
    freed: Spread


@dataclass(frozen=True, slots=True)
class TrafficInfo:
    """What classes and tenants ask for and get. Two of one epoch make rates."""

    # Larger after each start of the scheduler, and the seconds since then.
    epoch: int
    uptime_s: float
    classes: tuple[ClassTraffic, ...]
    tenants: tuple[TenantTraffic, ...]
    # Tenants that are left out.
    tenants_omitted: int
    forecasts: tuple[ForecastQuality, ...] = ()
    # Since the start of the scheduler.
    cancels: tuple[CancelTraffic, ...] = ()


def from_traffic(traffic: pb.Traffic) -> TrafficInfo:
    """The traffic of a mesh."""
    return TrafficInfo(
        epoch=traffic.epoch,
        uptime_s=traffic.uptime_seconds,
        classes=tuple(
            ClassTraffic(
                name=each.name,
                load=_load(each.load),
                counts=_counts(each.counts),
                targets=_targets(each.targets),
                recent=_promises(each.recent.promises),
                ttft=_spread(each.recent.ttft),
                queue=_spread(each.recent.queue),
            )
            for each in traffic.classes
        ),
        tenants=tuple(
            TenantTraffic(
                tenant=each.tenant_id if each.HasField("tenant_id") else None,
                traffic_class=each.traffic_class,
                load=_load(each.load),
                counts=_counts(each.counts),
            )
            for each in traffic.tenants
        ),
        tenants_omitted=traffic.tenants_omitted,
        forecasts=tuple(
            ForecastQuality(
                model=each.model,
                model_revision=each.model_revision,
                count=each.count,
                median_error=each.median_error,
                median_bias=each.median_bias,
                tried=each.tried,
                tried_in_time=each.tried_in_time,
            )
            for each in traffic.forecasts
        ),
        cancels=tuple(CancelTraffic(each.origin, _spread(each.freed)) for each in traffic.cancels),
    )


def _load(load: pb.TrafficLoad) -> Load:
    return Load(
        requests_waiting=load.requests_waiting,
        tokens_waiting=load.tokens_waiting,
        oldest_s=load.oldest_seconds if load.HasField("oldest_seconds") else None,
        requests_running=load.requests_running,
        kv_blocks=load.kv_blocks,
    )


def _counts(counts: pb.TrafficCounts) -> Counts:
    return Counts(
        accepted=counts.accepted,
        served=counts.served,
        cancelled=counts.cancelled,
        refused=dict(counts.refused),
        failed=dict(counts.failed),
        promises=_promises(counts.promises),
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        generated_tokens=counts.generated_tokens,
        wasted_tokens=counts.wasted_tokens,
        preemptions=counts.preemptions,
    )


def _promises(promises: pb.PromiseCounts) -> Promises:
    return Promises(
        *(Kept(each.kept, each.broken) for each in (promises.ttft, promises.gap, promises.request)),
    )


def _targets(targets: pb.TrafficTargets) -> Targets:
    return Targets(targets.ttft_seconds, targets.ttft_percentile, targets.gap_seconds, targets.gap_percentile)


def _spread(spread: pb.Spread) -> Spread:
    return Spread(spread.count, spread.mean_seconds, spread.p50_seconds, spread.p95_seconds, spread.p99_seconds)
