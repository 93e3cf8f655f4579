"""What a mesh says of itself, as samples and limits. Pure but for what it remembers of the last look."""

from __future__ import annotations

from collections.abc import Mapping

from tercet.mesh_info import FleetInfo, WorkerInfo
from tercet.traffic import TrafficInfo

from .record import ServerSample, WorkerSample
from .slo import Slo


class FleetRates:
    """Makes rates of counts."""

    def __init__(self) -> None:
        # Address -> when it was looked at, and its tokens by then.
        self._before: dict[str, tuple[float, int]] = {}

    def sample(self, fleet: FleetInfo, now: float) -> ServerSample:
        """The mesh at `now`, in seconds on any clock."""
        workers = tuple(self._worker(each, now) for each in fleet.workers)
        rates = [each.tokens_per_s for each in workers if each.tokens_per_s is not None]
        return ServerSample(
            queued=fleet.requests_waiting,
            running=fleet.requests_running,
            kv_used=sum(each.kv_used for each in workers),
            kv_cached=sum(each.kv_cached for each in workers),
            kv_free=sum(each.kv_free for each in workers),
            tokens_per_s=sum(rates) if rates else None,
            workers=workers,
        )

    def _worker(self, worker: WorkerInfo, now: float) -> WorkerSample:
        before = self._before.get(worker.address)
        self._before[worker.address] = (now, worker.tokens)
        rate = None
        # A worker that was attached anew counts from 0.
        if before is not None and now > before[0] and worker.tokens >= before[1]:
            rate = (worker.tokens - before[1]) / (now - before[0])
        return WorkerSample(
            address=worker.address,
            live=worker.live,
            sequences=worker.sequences,
            kv_used=worker.blocks_used,
            kv_cached=worker.blocks_cached,
            kv_free=worker.blocks_free,
            tokens_per_s=rate,
        )


def limits_of(traffic: TrafficInfo) -> Mapping[str, Slo]:
    """What its classes promise; those that promise nothing are left out."""
    limits = {
        each.name: Slo(ttft_s=each.targets.ttft_s or None, gap_s=each.targets.gap_s or None)
        for each in traffic.classes
        if each.name
    }
    return {name: slo for name, slo in limits.items() if slo != Slo()}
