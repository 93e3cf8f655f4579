"""The first step of a plan: prefills that go on and newcomers that start share its tokens, slots and blocks.

It is filled in the order of service; what that is, and how many steps follow, the planner says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .credits import blocks_for
from .policy import Limits


class Prefill(NamedTuple):
    """A sequence that needs a chunk or a join, as the next plan will find it."""

    sequence_id: int
    # In the order of service, smaller first; ends with its arrival.
    place: tuple[float, int]
    # Tokens that no plan in flight computes; 0: it is back from host memory and only has to join.
    left: int
    # Steps until its end at the latest, once it decodes.
    steps_left: int
    # Whether its join is on its way or done.
    joined: bool
    # Slots of its forks that others may have until its prefill is complete, and tokens with which it surely is not.
    lent: int = 0
    before_end: int = 0
    # Its traffic class, and the most prefill tokens of that in a step with decodes; 0: no limit of its own.
    class_name: str = ""
    class_tokens: int = 0
    # It was owed to its tenant, who had asked for less than the others of the class got.
    owed_turn: bool = False


class Candidate(NamedTuple):
    """A waiting sequence that may start on the worker."""

    sequence_id: int
    # As of a Prefill.
    place: tuple[float, int]
    tokens: int
    max_length: int
    # Itself and the forks that start with it.
    members: int = 1
    # The worker has its KV cache: in `held` of its blocks, or in host memory.
    kept: bool = False
    held: int = 0
    # As of a Prefill.
    class_name: str = ""
    class_tokens: int = 0
    owed_turn: bool = False

    def blocks(self, steps: int, block_size: int) -> int:
        """Blocks it may take in `steps` steps of decoding. Forks share the full blocks of the prompt."""
        blocks = blocks_for(min(self.tokens + steps, self.max_length), block_size)
        return blocks + (self.members - 1) * (blocks - self.tokens // block_size) - self.held


@dataclass(slots=True)
class FirstStep:
    """The first step of a plan, as it is filled in order of service."""

    limits: Limits
    # Tokens that nobody has a claim on, and how many may still be prefill; `short`: beside a token that is waited for.
    budget: int
    cap: int
    short: int
    # Blocks that nobody has a claim on once all that run have grown by a step.
    blocks: int
    # Sequences that run or start; the same with those being released and those that rest.
    running: int
    accounts: int
    # Slots for whose turn it is: those that groups lend are taken when it is the group's.
    slots: int
    # Steps until the last that decodes after this one ends at the latest.
    last_end: int
    # Somebody decodes in it: then classes have limits of their own; and what is left of these, by class.
    mixed: bool = False
    class_left: dict[str, int] = field(default_factory=dict)
    # By class: prefill tokens that are left for those to whom nothing is owed, where these are bounded.
    rest_left: dict[str, int] = field(default_factory=dict)
    # These may have to wait for one that is; and whether they do, in these classes.
    rest_may_wait: bool = True
    preferring: set[str] = field(default_factory=set)
    rest_waits: bool = False
    # Prefill work that has to wait for the next plan: then this one must be short.
    backlog: bool = False
    # A newcomer found no room: nobody behind it takes what it waits for.
    full: bool = False
    # Forks wait for the slots that they lent.
    awaits_slots: bool = False
    # The last to arrive of those whose prefill is complete with this step.
    newest: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)
    join: list[int] = field(default_factory=list)
    start: list[Candidate] = field(default_factory=list)

    def advance(self, prefill: Prefill) -> None:
        """Gives a running prefill its share. It has a token of its own in the step."""
        self._note_turn(prefill)
        count = min(prefill.left, self.budget + 1, self.cap, self._left_of_class(prefill))
        self.slots -= prefill.lent
        awaits_slots = prefill.lent > 0 > self.slots
        if awaits_slots:
            self.awaits_slots = True
            count = min(count, prefill.before_end)
        if count < prefill.left:
            self.backlog |= count > 0 or not awaits_slots
        else:
            self._completes(prefill, prefill.steps_left)
        if count > 0:
            self._add_chunk(prefill, count)
            self.budget -= count - 1
        if not prefill.joined and (count > 0 or not prefill.left):
            self.join.append(prefill.sequence_id)

    def admit(self, candidate: Candidate) -> None:
        """Starts a newcomer if it has room."""
        self._note_turn(candidate)
        if candidate.members > self.slots:
            self.full = True
            return
        room = self.budget - (candidate.members - 1)
        count = min(1, room) if candidate.kept else min(candidate.tokens, room, self.cap)
        if count <= 0:
            self.full = self.backlog = True
            return
        if not candidate.kept:
            count = min(count, self._left_of_class(candidate))
            if count <= 0:
                # Nobody of another class has to wait for its turn.
                self.backlog = True
                return
        need = candidate.blocks(1, self.limits.block_size)
        # Everyone who runs keeps room to grow by a block, or the newcomer would soon be preempted again.
        alone = self.accounts == (1 if candidate.held else 0)
        if need + self.running > self.blocks and not alone:
            self.full = True
            return
        self.blocks -= need
        self.running += candidate.members
        self.accounts += 0 if candidate.held else candidate.members
        self.slots -= candidate.members
        self.start.append(candidate)
        self.join.append(candidate.sequence_id)
        self.budget = room - count
        if not candidate.kept:
            self._add_chunk(candidate, count)
        if candidate.kept or count == candidate.tokens:
            self._completes(candidate, candidate.max_length - candidate.tokens)
        else:
            self.backlog = True

    def _note_turn(self, each: Prefill | Candidate) -> None:
        """One that others pass, who get their first token now, does not make the step long for them."""
        if each.place[1] < self.newest:
            self.cap = min(self.cap, self.short)

    def _left_of_class(self, each: Prefill | Candidate) -> int:
        """Prefill tokens that its class, and those of it to whom nothing is owed, may still have in the step."""
        left = self.limits.max_num_batched_tokens
        if self.mixed and each.class_tokens:
            left = self.class_left.setdefault(each.class_name, each.class_tokens)
        if each.owed_turn:
            return left
        if each.class_name in self.preferring:
            self.rest_waits = True
            return 0
        return min(left, self.rest_left.get(each.class_name, left))

    def _add_chunk(self, each: Prefill | Candidate, count: int) -> None:
        if each.class_name in self.class_left:
            self.class_left[each.class_name] -= count
        self.chunks.append((each.sequence_id, count))
        self.cap -= count
        self.short -= count
        if each.class_name in self.rest_left and not each.owed_turn:
            self.rest_left[each.class_name] -= count

    def _completes(self, each: Prefill | Candidate, steps_left: int) -> None:
        """It decodes after this step."""
        if each.owed_turn and self.rest_may_wait:
            self.preferring.add(each.class_name)
        self.newest = max(self.newest, each.place[1])
        self.last_end = max(self.last_end, steps_left)
