"""The workers there are, the pools they form, and the addresses where others may be.

Holds state and answers questions about it; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import WorkerInfo
from .pool import Pool
from .worker import Worker


@dataclass(slots=True, eq=False)
class Fleet:
    """All pools, and all addresses that are dialled."""

    addresses: tuple[str, ...]
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)
    # Live workers by link.
    workers: dict[int, Worker] = field(default_factory=dict)
    # What each address said last.
    known: dict[str, WorkerInfo] = field(default_factory=dict)
    # Addresses of workers that were given up because they hung, and have not come back: since when, in seconds on the
    # scheduler's clock.
    hung: dict[str, float] = field(default_factory=dict)

    def look_at(self, addresses: tuple[str, ...]) -> None:
        """The addresses that are dialled from now on; what others said is forgotten."""
        self.addresses = addresses
        self.known = {address: info for address, info in self.known.items() if address in addresses}
        self.hung = {address: since for address, since in self.hung.items() if address in addresses}

    def pool_of(self, worker: Worker) -> Pool:
        return self.pools[worker.info.model, worker.info.model_revision]

    @property
    def complete(self) -> bool:
        """Whether it is known of every address what is served there."""
        return self.known.keys() >= set(self.addresses)

    def models(self) -> list[str]:
        return sorted({model for model, _ in self.pools})

    def add(self, worker: Worker) -> Pool:
        """A worker came. Pools of other revisions of its model that have nothing left are forgotten."""
        info = worker.info
        self.known[worker.address] = info
        self.hung.pop(worker.address, None)
        pool = self.pools.setdefault((info.model, info.model_revision), Pool(info.model, info.model_revision))
        pool.workers[worker.link] = self.workers[worker.link] = worker
        pool.note_size()
        for key, other in list(self.pools.items()):
            used = other.workers or len(other.waiting) or other.paused
            if other is not pool and other.model == pool.model and not used:
                del self.pools[key]
        return pool

    def remove(self, worker: Worker) -> Pool:
        """A worker went."""
        pool = self.pool_of(worker)
        del pool.workers[worker.link], self.workers[worker.link]
        pool.note_size()
        return pool
