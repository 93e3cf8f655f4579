"""What keeps a waiting sequence from starting: looks at the state behind a round, changes nothing, decides nothing."""

from __future__ import annotations

from tercet.explain.story import Limit

from ..kv_shares import KvShares
from ..pool import Pool
from ..room import kept_of, start_blocks
from ..sequence import Sequence
from ..worker import Worker


def held_up(pool: Pool, leader: Sequence, now: float) -> Limit:
    """What a sequence waits for that is in the pool's queue: by its own needs, else by those of whoever is first, since
    nobody behind takes what that one waits for. As deal() in placement.py, of which it asks the same questions."""
    shares = KvShares(pool)
    own = _limit(pool, shares, leader, reserved=False)
    if own in (Limit.NO_WORKER, Limit.SHARE, Limit.CLASS):
        return own
    order = pool.order(now, sum(worker.free_slots for worker in pool.workers.values()))
    first = order.next
    if first is None or first is leader:
        return own or _limit(pool, shares, leader, reserved=order.reserved) or Limit.BUDGET
    return _limit(pool, shares, first, reserved=order.reserved) or own or Limit.BUDGET


def _limit(pool: Pool, shares: KvShares, sequence: Sequence, *, reserved: bool) -> Limit | None:
    """None: there is a place for it, as soon as there are tokens left in a step."""
    places = [each for each in pool.workers.values() if not each.dropped and pool.may_go(each, sequence)]
    if not places:
        return Limit.NO_WORKER
    if shares.full(sequence):
        return Limit.SHARE
    allowed = [each for each in places if _takes_class(each, sequence)]
    if not allowed:
        return Limit.CLASS
    with_slots = [each for each in allowed if _has_slots(each, sequence, reserved=reserved)]
    if not with_slots:
        return Limit.SLOTS
    return None if any(_has_blocks(each, sequence, reserved=reserved) for each in with_slots) else Limit.BLOCKS


def _takes_class(worker: Worker, sequence: Sequence) -> bool:
    most = sequence.request.traffic_class.max_running
    size = worker.class_sizes.get(sequence.request.traffic_class.name, 0)
    return not most or not size or size + len(sequence.group) <= most


def _has_slots(worker: Worker, sequence: Sequence, *, reserved: bool) -> bool:
    members = len(sequence.group)
    kept = kept_of(worker.limits.max_running, members) if reserved else 0
    return not worker.guarded and worker.free_slots - kept >= members


def _has_blocks(worker: Worker, sequence: Sequence, *, reserved: bool) -> bool:
    taken = len(worker.sequences)
    need = start_blocks(sequence, worker.info.block_size) - (sequence.kept_blocks if sequence.resting else 0)
    if not taken and len(worker.resting) == int(sequence.resting):
        return True
    kept = kept_of(worker.info.num_blocks, need) if reserved and taken else 0
    return need + taken + kept <= worker.ledger.available
