"""Deals waiting sequences to the workers of their pool. Pure; knows no plans."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from .credits import blocks_for
from .fleet import Pool, Worker
from .planner import Policy, prefill_cap
from .prefix_index import cached_run, chain_keys
from .sequence import Sequence

# What computing a prompt token weighs against one that others on the worker wait for: it delays those who come after,
# too, and can be saved where the cache has it.
COMPUTED_WEIGHT = 2
# What a sequence on the worker weighs, in prompt tokens: it takes a part of every step.
SEQUENCE_WEIGHT = 16
# A step's prefill is dealt at most so often: more could not start in the plans that are made now.
STEPS_DEALT = 2

# A worker that has work and reports nothing for so many times as long as its step was to take may hang: what others can
# run is not put there. At least so many seconds; and so many as long as nobody knows what a step takes.
LATE_STEPS = 10
LATE_SECONDS = 1.0
LATE_SECONDS_UNKNOWN = 10.0

# (worker, sequence, keys dealt to that worker just now) -> tokens of the sequence that its prefix cache has, or will
# have when what was sent there is prefilled.
CachedTokens = Callable[[Worker, Sequence, Container[int]], int]


@dataclass(slots=True)
class _Room:
    worker: Worker
    available: int
    slots: int
    # Sequences there.
    taken: int
    # Prefills there that have not been counted, the least urgent first, the tokens that each has yet to compute, and
    # the slots that it lends.
    behind: list[tuple[tuple[float, int], int, int]]
    # Prompt tokens to be computed there before it is the turn of the sequence that is looked at.
    pending: int
    # Tokens that may still be dealt to it.
    budget: int
    # Nobody else may come.
    shut: bool
    keys: set[int] = field(default_factory=set)

    def opens(self, sequence: Sequence) -> bool:
        """Whether anything may still go there, now that it is the turn of the sequence: prefills that are more urgent
        are served before it."""
        while self.behind and self.behind[-1][0] < sequence.urgency:
            _, tokens, lent = self.behind.pop()
            self.pending += tokens
            self.budget -= tokens
            self.slots -= lent
        return not self.shut and self.budget > 0

    def need(self, sequence: Sequence) -> int:
        """Blocks with which it can start: forks share the full blocks of the prompt."""
        size, tokens = self.worker.info.block_size, len(sequence.token_ids)
        blocks = blocks_for(min(tokens + 1, sequence.max_length), size)
        return blocks + len(sequence.forks) * (blocks - tokens // size)

    def has_blocks(self, sequence: Sequence) -> bool:
        """As the planner: everyone there keeps a block to grow by. An empty worker takes whatever was admitted."""
        return not self.taken or self.need(sequence) + self.taken <= self.available

    def has_place(self, sequence: Sequence) -> bool:
        """Whether it may go there now, if there are blocks."""
        return not self.shut and self.slots > len(sequence.forks) and not (sequence.suspect and self.taken)

    def take(self, sequence: Sequence, computed: int) -> None:
        """Notes that the sequence is dealt to it; `computed` of its tokens have to be computed."""
        members = 1 + len(sequence.forks)
        self.available -= self.need(sequence)
        self.slots -= members
        self.taken += members
        self.pending += computed
        sequence.cached_ahead = max(0, len(sequence.token_ids) - computed)
        self.budget -= max(computed, members)
        self.shut = sequence.suspect
        self.keys.update((sequence.prefix_keys or {}).get(self.worker.info.block_size, ()))


def cached_tokens(worker: Worker, sequence: Sequence, dealt: Container[int]) -> int:
    """How many of the sequence's first tokens need not be computed on the worker."""
    if not worker.prefixes and worker.tokens:
        # It has worked and has nothing to show: it keeps no prefix cache, and promises to it are worth nothing.
        return 0
    size = worker.info.block_size
    if sequence.prefix_keys is None:
        sequence.prefix_keys = {}
    keys = sequence.prefix_keys.get(size)
    if keys is None:
        keys = chain_keys(sequence.request.submission.prefix_salt, sequence.token_ids, size)
        sequence.prefix_keys[size] = keys
    return size * cached_run(keys, worker.prefixes, worker.promised, dealt)


def late(worker: Worker, now: float) -> bool:
    """Whether the worker owes a report for so long that it may hang."""
    waited = now - worker.heard_at
    # The time first: this is asked for every worker and plan.
    if waited <= LATE_SECONDS or not worker.busy:
        return False
    tokens = worker.window.prefill_ahead + len(worker.sequences)
    step_seconds = worker.step_times.predict(tokens, worker.context_tokens)
    return waited > (LATE_SECONDS_UNKNOWN if step_seconds is None else LATE_STEPS * step_seconds)


def deal(pool: Pool, policy: Policy, now: float, lookup: CachedTokens = cached_tokens) -> dict[int, list[Sequence]]:
    """Which waiting sequences each worker (by link) should try to start, in order of service.

    No more than its next plans can start, so that the queue is not dealt anew with every event. Each goes where the
    least work lies before its first token: what its prefix there leaves to compute, what more urgent ones there have to
    compute, and what runs there. Order is strict: when the next sequence finds no free slot or too few credits, the
    workers it may go to take nothing that is behind it, or a long one could starve. One that waits in a worker's host
    memory may go there only. A suspect of bringing workers down goes to an empty worker only, for which one of them
    takes nobody else, and stays alone there until it has got a token. What a worker can run that is not late waits for
    such a one.
    """
    usable = [worker for worker in pool.workers.values() if not worker.dropped and worker.free_slots]
    rooms = {worker.link: _room(worker, policy) for worker in usable}
    if all(room.shut for room in rooms.values()) or all(_none_open(rooms, first) for first in pool.head(1)):
        return {}
    swapped = sum(len(worker.swapped) for worker in pool.workers.values())
    punctual = [worker for worker in pool.workers.values() if not worker.dropped and not late(worker, now)]
    dealt: dict[int, list[Sequence]] = {}
    for sequence in pool.head(swapped + sum(max(0, room.slots) for room in rooms.values())):
        if _none_open(rooms, sequence):
            break
        places = [room for room in rooms.values() if pool.may_go(room.worker, sequence)]
        if len(punctual) < len(pool.workers) and any(pool.may_go(worker, sequence) for worker in punctual):
            places = [room for room in places if room.worker in punctual]
        fitting = [room for room in places if room.has_place(sequence) and room.has_blocks(sequence)]
        if not fitting:
            _hold(places, sequence)
            continue
        best, computed = _cheapest(fitting, sequence, lookup)
        if best.budget > 0:
            best.take(sequence, computed)
            dealt.setdefault(best.worker.link, []).append(sequence)
        else:
            # Its turn comes there with one of the next steps, sooner than elsewhere.
            best.shut = True
    return dealt


def _none_open(rooms: dict[int, _Room], sequence: Sequence) -> bool:
    """Whether nothing goes anywhere any more. Each room has to hear whose turn it is."""
    return not [room for room in rooms.values() if room.opens(sequence)]


def _hold(places: list[_Room], sequence: Sequence) -> None:
    """Keeps what has to become free for the sequence: all that it may take; for suspects the one worker that is likely
    to be empty the soonest."""
    if not sequence.suspect:
        for room in places:
            room.shut = True
    elif places:
        # Nobody is dealt to it any more, so that the next suspect waits for the same one.
        min(places, key=lambda room: room.taken).shut = True


def _room(worker: Worker, policy: Policy) -> _Room:
    behind = worker.pending_prefills()
    decoding = len(worker.sequences) - sum(len(sequence.group) for sequence in worker.arriving.values())
    step = worker.limits.max_num_batched_tokens
    if decoding > 0:
        step = min(step, prefill_cap(policy, worker.mixed_tokens(policy.max_mixed_step_s, decoding)))
    return _Room(
        worker=worker,
        available=worker.ledger.available,
        slots=worker.free_slots,
        taken=len(worker.sequences),
        behind=behind,
        pending=0,
        budget=STEPS_DEALT * step,
        shut=worker.guarded,
    )


def _cheapest(rooms: list[_Room], sequence: Sequence, lookup: CachedTokens) -> tuple[_Room, int]:
    """The worker with the least work before the sequence's first token, and the tokens to be computed there."""
    length = 0 if sequence.swapped_on is not None else len(sequence.token_ids)
    if len(rooms) == 1:
        # Nothing to choose: the keys of its prefix need not be made.
        return rooms[0], length
    best: tuple[tuple[int, int, int], _Room, int] | None = None
    for room in rooms:
        computed = max(1, length - lookup(room.worker, sequence, room.keys))
        cost = COMPUTED_WEIGHT * computed + room.pending + SEQUENCE_WEIGHT * room.taken
        # Of equals the one whose cache would lose least: prefixes spread over the workers' caches.
        rating = (cost, -room.available, room.worker.ledger.counts.cached)
        if best is None or rating < best[0]:
            best = rating, room, computed
    assert best is not None
    return best[1], best[2]
