"""Who holds how much of a pool's KV blocks, against the share that his plan gives him.

Counted in tokens that blocks have room for: workers of one pool may have blocks of different sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from .lifecycle import RUNNING
from .pool import Pool
from .room import start_blocks
from .sequence import Sequence
from .worker import Worker


def granted_tokens(pool: Pool, share: float) -> int:
    """The part of the room in the pool's blocks that one tenant may hold."""
    return _part(share, _room(pool))


def held_by(worker: Worker, tenant: str) -> tuple[int, Counter[str]]:
    """What sequences of a tenant with a share have there, with a block for each to grow by, in tokens; and how many of
    each class they are."""
    blocks, classes = 0, Counter[str]()
    if worker.num_bounded:
        for sequence_id, sequence in worker.sequences.items():
            if sequence.request.tenant.tenant == tenant:
                blocks += worker.ledger.reserved(sequence_id) + 1
                classes[sequence.request.traffic_class.name] += 1
    return blocks * worker.info.block_size, classes


class KvShares:
    """What tenants' sequences have credit for, in tokens. Counts when it is first asked about a tenant with a share."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._held: dict[str, int] | None = None
        self._beyond: Set[int] | None = None

    def full(self, sequence: Sequence) -> bool:
        """Whether the sequence would take its tenant beyond his share, with a block for each of his to grow by. A
        tenant of whom nothing runs may always start one."""
        tenant = sequence.request.tenant
        if not tenant.kv_share:
            return False
        held = self._count().get(tenant.tenant, 0)
        return held > 0 and held + self._need(sequence) > granted_tokens(self._pool, tenant.kv_share)

    def take(self, sequence: Sequence) -> None:
        """The sequence is about to start."""
        tenant = sequence.request.tenant
        if tenant.kv_share:
            held = self._count()
            held[tenant.tenant] = held.get(tenant.tenant, 0) + self._need(sequence)

    def beyond(self) -> Set[int]:
        """Ids of the running sequences that have grown beyond their tenants' shares, without what is to be forked from
        them: of each tenant the least urgent, and never all."""
        if self._beyond is None:
            self._beyond = (
                self._find_beyond() if any(each.num_bounded for each in self._pool.workers.values()) else set()
            )
        return self._beyond

    def _find_beyond(self) -> set[int]:
        running: dict[str, list[tuple[tuple[float, int], Sequence, int]]] = {}
        for worker in self._pool.workers.values():
            for each in worker.sequences.values():
                tenant = each.request.tenant
                # Those that have been told to leave will hold nothing soon.
                if tenant.kv_share and each.leader is None and each.state in RUNNING:
                    blocks = sum(worker.ledger.reserved(one.sequence_id) for one in each.group)
                    tokens = blocks * worker.info.block_size
                    urgency = each.turn[0] + each.request.priority_s, each.arrival
                    running.setdefault(tenant.tenant, []).append((urgency, each, tokens))
        beyond, room = set(), _room(self._pool)
        for of_tenant in running.values():
            of_tenant.sort(key=lambda one: one[0])
            held = of_tenant[0][2]
            for _, each, tokens in of_tenant[1:]:
                held += tokens
                if held > _part(each.request.tenant.kv_share, room):
                    beyond.add(each.sequence_id)
        return beyond

    def _count(self) -> dict[str, int]:
        if self._held is None:
            self._held = {}
            for worker in self._pool.workers.values():
                for sequence in worker.sequences.values():
                    tenant = sequence.request.tenant.tenant
                    blocks = worker.ledger.reserved(sequence.sequence_id) + 1
                    self._held[tenant] = self._held.get(tenant, 0) + blocks * worker.info.block_size
        return self._held

    def _need(self, sequence: Sequence) -> int:
        # Where it will start is not known yet: the most that it may take.
        sizes = {worker.info.block_size for worker in self._pool.workers.values()}
        return max(size * (start_blocks(sequence, size) + len(sequence.group)) for size in sizes)


def _room(pool: Pool) -> int:
    return sum(worker.info.num_blocks * worker.info.block_size for worker in pool.live)


def _part(share: float, tokens: int) -> int:
    # Rounded before it is cut: 0.29 of 100 is a little less than 29.
    return int(round(share * tokens, 6))
