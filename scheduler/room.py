"""What one worker still has room for while waiting sequences are dealt. Sends nothing."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, field

from .credits import blocks_for
from .lifecycle import RUNNING
from .planner_view import holders, yielders
from .policy import Policy, prefill_cap
from .preemption import Holder, choose_returning, choose_yielding
from .sequence import Sequence
from .service_order import Begun, begins_now, begun_there, place_among
from .waiting import WaitingQueue
from .worker import Worker

# A step's prefill is dealt at most so often: more could not start in the plans that are made now.
STEPS_DEALT = 2
# Of a worker's slots and blocks, what is kept for those to whom something is owed: what becomes free in a few steps,
# so that they need not wait for it.
KEPT = 1 / 32
# Who may take what is free: those of a lower rank than this.
_ANYBODY, _NOBODY = math.inf, -math.inf


@dataclass(slots=True)
class Leaving:
    """Sequences that have been told to leave a worker, and the blocks that they will free."""

    sequences: int
    blocks: int


@dataclass(slots=True)
class Room:
    """A worker with what is dealt to it."""

    worker: Worker
    available: int
    slots: int
    # Sequences there, and whether some of them decode.
    taken: int
    mixed: bool
    # Sequences that have blocks there and no slot.
    resting: int
    # Prefills there that are served after all that is dealt to it, the least urgent first, the tokens that each has yet
    # to compute, and the slots that it lends.
    behind: list[tuple[tuple[float, int], int, int]]
    # Prompt tokens to be computed there first, and those that may still be dealt to it.
    pending: int
    budget: int
    # Nobody else may come.
    shut: bool
    held_for: float = _ANYBODY
    # Of classes with bounds of their own: their sequences there, and tokens that may still be dealt to it.
    class_sizes: dict[str, int] = field(default_factory=dict)
    class_budgets: dict[str, int] = field(default_factory=dict)
    keys: set[int] = field(default_factory=set)
    # Ids of those that are dealt to it.
    dealt: set[int] = field(default_factory=set)
    # Once somebody needs room: those that leave, those that may have to besides, and those that have to.
    leaving: Leaving | None = None
    yielders: list[Holder] | None = None
    yielding: list[Holder] = field(default_factory=list)
    # The prompts begun there, those that are dealt to it included.
    begun: list[Begun] = field(default_factory=list)
    # The place in the order of service of the sequence whose turn it is.
    place: tuple[float, int] = (0.0, 0)
    # Of those behind, the ones that are served before that sequence: how many, their tokens and slots.
    first: int = 0
    first_tokens: int = 0
    first_slots: int = 0
    # Slots and blocks that are kept for others.
    kept_slots: int = 0
    kept_blocks: int = 0

    @classmethod
    def of(cls, worker: Worker, policy: Policy, waiting: WaitingQueue) -> Room:
        behind = worker.pending_prefills()
        decoding = len(worker.sequences) - sum(len(sequence.group) for sequence in worker.arriving.values())
        step = worker.limits.max_num_batched_tokens
        if decoding > 0:
            step = min(step, prefill_cap(policy, worker.mixed_tokens(policy.max_mixed_step_s, decoding)))
        return cls(
            worker=worker,
            available=worker.ledger.available,
            slots=worker.free_slots,
            taken=len(worker.sequences),
            mixed=decoding > 0,
            resting=len(worker.resting),
            behind=behind,
            pending=0,
            budget=STEPS_DEALT * step,
            shut=worker.guarded,
            begun=begun_there(worker, waiting),
        )

    def turn_to(self, sequence: Sequence, served: float, *, reserved: bool) -> None:
        """It is the turn of the sequence, whose tenant has been served so much: finds its place there, if it comes.
        `reserved`: a part is kept for others, unless the sequence needs all there is."""
        self.kept_slots = self.kept_blocks = 0
        if reserved:
            self.kept_slots = kept_of(self.worker.limits.max_running, len(sequence.group))
            self.kept_blocks = kept_of(self.worker.info.num_blocks, self.need(sequence))
        self.place = place_among(self.begun, sequence, served)
        self.first = self.first_tokens = self.first_slots = 0
        for place, tokens, lent in reversed(self.behind):
            if place > self.place:
                break
            self.first += 1
            self.first_tokens += tokens
            self.first_slots += lent

    @property
    def tokens_left(self) -> int:
        """Tokens that may be dealt to it in this turn."""
        return self.budget - self.first_tokens

    @property
    def tokens_ahead(self) -> int:
        """Prompt tokens to be computed there before the sequence whose turn it is."""
        return self.pending + self.first_tokens

    def opens(self, sequence: Sequence) -> bool:
        """Whether the sequence, whose turn it is, may still go there."""
        return not self.shut and self.tokens_left > 0 and self._lets(sequence)

    def takes_class(self, sequence: Sequence) -> bool:
        """Whether its class may have more there."""
        traffic_class = sequence.request.traffic_class
        if traffic_class.max_running:
            size = self.worker.class_sizes.get(traffic_class.name, 0) + self.class_sizes.get(traffic_class.name, 0)
            # One that is too large by itself has its turn when it is alone.
            if size and size + len(sequence.group) > traffic_class.max_running:
                return False
        if traffic_class.max_prefill_tokens and self.mixed:
            return self._class_budget(sequence) > 0
        return True

    def need(self, sequence: Sequence) -> int:
        """Blocks that it takes to start."""
        return start_blocks(sequence, self.worker.info.block_size) - (sequence.kept_blocks if sequence.resting else 0)

    def has_blocks(self, sequence: Sequence) -> bool:
        """As the planner: everyone there keeps a block to grow by. An empty worker takes whatever was admitted."""
        empty = not self.taken and self._rests_alone(sequence)
        kept = self.kept_blocks if self.taken else 0
        return empty or self.need(sequence) + self.taken + kept <= self.available

    def has_place(self, sequence: Sequence) -> bool:
        """Whether it may go there now, if there are blocks."""
        lonely = sequence.suspect and self.taken
        return not self.shut and self._lets(sequence) and self._slots >= len(sequence.group) and not lonely

    def take(self, sequence: Sequence, computed: int) -> None:
        """Notes that the sequence is dealt to it; `computed` of its tokens have to be computed."""
        self._count(sequence)
        self.dealt.add(sequence.sequence_id)
        sequence.turn_there = self.place
        self.begun.append(begins_now(self.place, sequence))
        self.pending += computed
        sequence.cached_ahead = max(0, len(sequence.token_ids) - computed)
        self.budget -= max(computed, len(sequence.group))
        self.shut = sequence.suspect
        self.keys.update((sequence.prefix_keys or {}).get(self.worker.info.block_size, ()))

    def hold(self, sequence: Sequence, *, due: bool) -> None:
        """Keeps what has to become free for the sequence. As long as it is not due, lower ranks may take it."""
        self.shut |= due
        self.held_for = min(self.held_for, sequence.request.traffic_class.rank)

    def who_yields(self, sequence: Sequence, now: float) -> tuple[Holder, ...] | None:
        """Who else has to leave, so that the sequence can start when they and those that leave have gone. None if that
        would not help, or nothing may be dealt to it any more."""
        if self.shut or self.tokens_left <= 0:
            return None
        leaving = self._who_leaves()
        if self.yielders is None:
            self.yielders = [each for each in yielders(self.worker, now) if not self._told(each)]
        slots = len(sequence.group) - self._slots - leaving.sequences
        blocks = self._blocks_missing(sequence, leaving)
        return choose_yielding(self.yielders, sequence.request.traffic_class.rank, sequence.turn, slots, blocks)

    def who_returns(self, sequence: Sequence, beyond: Set[int]) -> tuple[Holder, ...] | None:
        """Which of those that rest, and of `beyond`, grown beyond their tenants' shares, have to leave, so that the
        sequence finds blocks. None if that would not help, or it is not blocks that it lacks."""
        if not (beyond or self.resting) or self.tokens_left <= 0 or not self.has_place(sequence):
            return None
        starting = {*self.dealt, sequence.sequence_id}
        mine = [
            each
            for each in holders(self.worker, beyond)
            if starting.isdisjoint(each.sequence_ids) and not self._told(each)
        ]
        return choose_returning(mine, self._blocks_missing(sequence, self._who_leaves()))

    def make_room(self, sequence: Sequence, victims: tuple[Holder, ...]) -> None:
        """Notes that the sequence starts there as soon as these and those that leave have gone. What is free there now
        is kept for it."""
        leaving = self._who_leaves()
        self.yielding += victims
        self.yielders = None
        leaving.sequences += sum(each.slots for each in victims)
        leaving.blocks += sum(each.blocks for each in victims)
        self._count(sequence)
        self.budget -= len(sequence.token_ids)
        self.held_for = _NOBODY

    def _who_leaves(self) -> Leaving:
        if self.leaving is None:
            told = [each for each in self.worker.sequences.values() if each.state not in RUNNING]
            self.leaving = Leaving(len(told), self.worker.leaving_blocks)
        return self.leaving

    def _blocks_missing(self, sequence: Sequence, leaving: Leaving) -> int:
        staying = self.taken - leaving.sequences
        if staying <= 0 and self._rests_alone(sequence):
            return 0
        kept = self.kept_blocks if staying > 0 else 0
        return self.need(sequence) + max(0, staying) + kept - self.available - leaving.blocks

    def _rests_alone(self, sequence: Sequence) -> bool:
        """Whether no other sequence has blocks there without running."""
        return self.resting == (1 if sequence.resting else 0)

    def _told(self, holder: Holder) -> bool:
        return any(each.sequence_ids == holder.sequence_ids for each in self.yielding)

    @property
    def _slots(self) -> int:
        return self.slots - self.first_slots - self.kept_slots

    def _lets(self, sequence: Sequence) -> bool:
        return sequence.request.traffic_class.rank < self.held_for

    def _count(self, sequence: Sequence) -> None:
        members, traffic_class = len(sequence.group), sequence.request.traffic_class
        if self.first:
            del self.behind[-self.first :]
            self.pending += self.first_tokens
            self.budget -= self.first_tokens
            self.slots -= self.first_slots
            self.first = self.first_tokens = self.first_slots = 0
        self.available -= self.need(sequence)
        self.slots -= members
        self.taken += members
        if traffic_class.max_running:
            self.class_sizes[traffic_class.name] = self.class_sizes.get(traffic_class.name, 0) + members
        if traffic_class.max_prefill_tokens:
            self.class_budgets[traffic_class.name] = self._class_budget(sequence) - len(sequence.token_ids)

    def _class_budget(self, sequence: Sequence) -> int:
        traffic_class = sequence.request.traffic_class
        budget = self.class_budgets.get(traffic_class.name)
        if budget is None:
            budget = STEPS_DEALT * traffic_class.max_prefill_tokens - self.worker.pending_of_class(traffic_class.name)
        return budget


def kept_of(places: int, needed: int) -> int:
    """Of a worker's slots or blocks, what is kept from one that needs so many: it may have them if that is all."""
    return min(int(KEPT * places), max(0, places - needed))


def start_blocks(sequence: Sequence, block_size: int) -> int:
    """Blocks with which a sequence can start: forks share the full blocks of the prompt."""
    tokens = len(sequence.token_ids)
    blocks = blocks_for(min(tokens + 1, sequence.max_length), block_size)
    return blocks + len(sequence.forks) * (blocks - tokens // block_size)
