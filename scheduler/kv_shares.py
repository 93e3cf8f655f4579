"""Who holds how many of a pool's blocks, against the share that his plan gives him."""

from __future__ import annotations

from collections.abc import Set

from .fleet import Pool
from .room import start_blocks
from .sequence import RUNNING, Sequence


class KvShares:
    """Blocks that tenants' sequences have credit for. Counts when it is first asked about a tenant with a share."""

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
        return held > 0 and held + self._need(sequence) > tenant.kv_share * self._total

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
                    running.setdefault(tenant.tenant, []).append((each.turn, each, blocks))
        beyond, total = set(), self._total
        for of_tenant in running.values():
            of_tenant.sort(key=lambda one: one[0])
            held = of_tenant[0][2]
            for _, each, blocks in of_tenant[1:]:
                held += blocks
                if held > each.request.tenant.kv_share * total:
                    beyond.add(each.sequence_id)
        return beyond

    def _count(self) -> dict[str, int]:
        if self._held is None:
            self._held = {}
            for worker in self._pool.workers.values():
                for sequence in worker.sequences.values():
                    tenant = sequence.request.tenant.tenant
                    blocks = worker.ledger.reserved(sequence.sequence_id) + 1
                    self._held[tenant] = self._held.get(tenant, 0) + blocks
        return self._held

    @property
    def _total(self) -> int:
        return sum(worker.info.num_blocks for worker in self._pool.live)

    def _need(self, sequence: Sequence) -> int:
        # The workers of a pool are alike.
        size = next(iter(self._pool.workers.values())).info.block_size
        return start_blocks(sequence, size) + len(sequence.group)
