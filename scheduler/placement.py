"""Deals waiting sequences to the workers of their pool. Pure; knows no plans."""

from __future__ import annotations

from dataclasses import dataclass

from .credits import blocks_for
from .fleet import Pool, Worker
from .sequence import Sequence


@dataclass(slots=True)
class _Room:
    worker: Worker
    available: int
    slots: int
    # Sequences there.
    taken: int
    # Somebody is to be alone there.
    shut: bool


def deal(pool: Pool) -> dict[int, list[Sequence]]:
    """Which waiting sequences each worker (by link) should try to start, in order of service.

    Each goes where most credits are available, so that load evens out. Order is strict: when the next sequence finds
    no free slot or too few credits, those behind it wait too, or a long one could starve. A suspect of bringing workers
    down goes to an empty worker only, and stays alone there until it has got a token.
    """
    rooms = [
        _Room(
            worker,
            worker.ledger.available,
            worker.free_slots,
            len(worker.sequences),
            any(sequence.suspect for sequence in worker.sequences.values()),
        )
        for worker in pool.workers.values()
        if worker.free_slots and not worker.dropped
    ]
    dealt: dict[int, list[Sequence]] = {}
    for sequence in pool.waiting.head(sum(room.slots for room in rooms)):
        fitting = [
            room
            for room in rooms
            if room.slots
            and not room.shut
            and not (sequence.suspect and room.taken)
            and room.worker.can_ever_hold(sequence.max_length)
        ]
        if not fitting:
            break
        best = max(fitting, key=lambda room: (room.available, room.slots))
        tokens = min(len(sequence.token_ids) + 1, sequence.max_length)
        need = blocks_for(tokens, best.worker.info.block_size)
        # As the planner: everyone there keeps a block to grow by. An empty worker takes whatever was admitted.
        if best.taken and need + best.taken > best.available:
            break
        best.slots -= 1
        best.taken += 1
        best.shut = sequence.suspect
        best.available -= need
        dealt.setdefault(best.worker.link, []).append(sequence)
    return dealt
