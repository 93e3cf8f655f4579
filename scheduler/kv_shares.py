"""Who holds how many of a pool's blocks, against the share that his plan gives him."""

from __future__ import annotations

from .fleet import Pool
from .room import start_blocks
from .sequence import Sequence


class KvShares:
    """Blocks that tenants' sequences have credit for. Counts when it is first asked about a tenant with a share."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._held: dict[str, int] | None = None

    def full(self, sequence: Sequence) -> bool:
        """Whether the sequence would take its tenant beyond his share. A tenant of whom nothing runs may always start
        one."""
        tenant = sequence.request.tenant
        if not tenant.kv_share:
            return False
        held = self._count().get(tenant.tenant, 0)
        total = sum(worker.info.num_blocks for worker in self._pool.live)
        return held > 0 and held + self._need(sequence) > tenant.kv_share * total

    def take(self, sequence: Sequence) -> None:
        """The sequence is about to start."""
        tenant = sequence.request.tenant
        if tenant.kv_share:
            held = self._count()
            held[tenant.tenant] = held.get(tenant.tenant, 0) + self._need(sequence)

    def _count(self) -> dict[str, int]:
        if self._held is None:
            self._held = {}
            for worker in self._pool.workers.values():
                for sequence in worker.sequences.values():
                    tenant = sequence.request.tenant.tenant
                    blocks = worker.ledger.reserved(sequence.sequence_id)
                    self._held[tenant] = self._held.get(tenant, 0) + blocks
        return self._held

    def _need(self, sequence: Sequence) -> int:
        # The workers of a pool are alike.
        return start_blocks(sequence, next(iter(self._pool.workers.values())).info.block_size)
