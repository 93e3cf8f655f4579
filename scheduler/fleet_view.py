"""The mesh as operators see it, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from .events import BlockCounts, WorkerInfo
from .fleet import Fleet
from .progress import Progress
from .worker import Worker


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as operators see it. Steps and tokens count from the start of its present stream."""

    address: str
    live: bool
    model: str
    device: str
    sequences: int
    blocks_total: int
    blocks: BlockCounts
    steps: int
    tokens: int
    swap_blocks_total: int
    swap_blocks_used: int
    draining: bool
    # It is silent for longer than it should be; and it was given up because it was, and has not come back.
    late: bool = False
    hung: bool = False

    @classmethod
    def of(cls, address: str, worker: Worker | None, known: WorkerInfo | None, *, hung: bool) -> WorkerView:
        return cls(
            address=address,
            live=worker is not None,
            model=known.model if known else "",
            device=known.device if known else "",
            sequences=len(worker.sequences) if worker else 0,
            blocks_total=worker.info.num_blocks if worker else 0,
            blocks=worker.ledger.counts if worker else BlockCounts(0, 0, 0),
            steps=worker.steps if worker else 0,
            tokens=worker.tokens if worker else 0,
            swap_blocks_total=worker.info.num_swap_blocks if worker else 0,
            swap_blocks_used=worker.swap_blocks_used if worker else 0,
            draining=worker is not None and worker.draining,
            late=worker is not None and worker.progress is not Progress.MOVING,
            hung=hung,
        )


@dataclass(frozen=True, slots=True)
class FleetView:
    """The mesh as operators see it."""

    requests_waiting: int
    requests_running: int
    # Those whose readers are behind.
    requests_paused: int
    requests_finished: int
    preemptions: int
    # Of the preemptions, those that moved blocks to host memory.
    swaps: int
    workers: tuple[WorkerView, ...]


def views_of(fleet: Fleet) -> tuple[WorkerView, ...]:
    """Every configured worker, live or not, in the order of configuration."""
    live = {worker.address: worker for worker in fleet.workers.values()}
    return tuple(
        WorkerView.of(address, live.get(address), fleet.known.get(address), hung=address in fleet.hung)
        for address in fleet.addresses
    )
