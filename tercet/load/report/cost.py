"""What a run cost: the hours of its workers, whatever they did in them. Pure.

So what failed, was refused or was done twice is in it, and what stood idle as well. What requests are charged with is
in the ledger: see `charges`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tercet.errors import LoadError
from tercet.load.folder import Run
from tercet.load.summary import PointSummary

_HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Price:
    """Of an hour of one worker, in a currency of one's own, and how many there were."""

    hour: float
    workers: int


@dataclass(frozen=True, slots=True)
class PointCost:
    """One load, from the end of its warm-up to its last request."""

    point: int
    worker_s: float
    cost: float
    qualified: int
    delivered_tokens: int

    @property
    def cost_per_qualified(self) -> float | None:
        """What a request costs that was served as promised, all others included; None if there was none."""
        return self.cost / self.qualified if self.qualified else None

    @property
    def cost_per_1000(self) -> float | None:
        """What a thousand output tokens cost that clients got, all others included; None if there were none."""
        return 1000 * self.cost / self.delivered_tokens if self.delivered_tokens else None


def costs(run: Run, price: Price) -> tuple[PointCost, ...]:
    """Of each load."""
    return tuple(_cost(point, price) for point in run.summary.points)


def _cost(point: PointSummary, price: Price) -> PointCost:
    worker_s = point.duration_s * price.workers
    tokens = round(point.accepted_tokens_per_s * point.duration_s)
    return PointCost(point.point, worker_s, worker_s / _HOUR_S * price.hour, point.qualified, tokens)


def workers_of(run: Run) -> int:
    """As many as the mesh has had, else one for each GPU of this host if the server was on it. Raises LoadError if
    nobody knows."""
    servers = [sample.server for sample in run.samples if sample.server is not None]
    if workers := max((len(server.workers) for server in servers), default=0):
        return workers
    environment = run.summary.environment
    host = environment.get("host")
    gpus = host.get("gpus") if isinstance(host, dict) else None
    if environment.get("same_host") and isinstance(gpus, list) and gpus:
        return len(gpus)
    raise LoadError("how many workers the server has is not in the run: say it with --workers")
