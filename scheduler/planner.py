"""Makes one plan for one worker: a pure function of what runs, what waits, credits, limits and a forecast.

Knows nothing of clocks, streams or how the numbers were found; the same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from .credits import blocks_for
from .plan_length import choose_steps, least_steps
from .step_time import CAUTIOUS_TOKENS

# Prefill tokens beside decodes that no forecast takes away: every prefill advances.
LEAST_PREFILL_TOKENS = 16


class Prefill(NamedTuple):
    """A sequence that needs a chunk or a join, as the next plan will find it."""

    sequence_id: int
    urgency: tuple[float, int]
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


@dataclass(frozen=True, slots=True)
class Running:
    """The sequences on the worker as the next plan will find them: columns, since there are many and plans are often.

    `tokens[i]` is what a sequence may hold when all plans in flight have run, in the worst case, of `max_lengths[i]`.
    """

    sequence_ids: Sequence[int]
    tokens: Sequence[int]
    max_lengths: Sequence[int]
    # Blocks they have credit for, together.
    reserved: int
    prefills: Sequence[Prefill]
    # How many decode; steps until the last and the first of these ends at the latest, after what the plans in flight
    # are expected to do. `first_end` counts only those that have steps left; 0: none has.
    decoding: int
    last_end: int
    first_end: int
    # It is lone on the worker, and no plan in flight can fork it: admission has made sure that its next step fits.
    lone: bool
    # Most steps of a plan in which their classes and those of the newcomers take part; 0: no limit.
    max_steps: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def growth(self, steps: int, block_size: int) -> int:
        """Blocks beyond their reservations that `steps` further steps can take."""
        total = -self.reserved
        for tokens, most in zip(self.tokens, self.max_lengths, strict=True):
            tokens += steps
            if tokens > most:
                tokens = most
            # blocks_for, in line: this runs for every sequence, several times a plan.
            total += -(-tokens // block_size)
        return total

    def tokens_after(self, steps: int) -> list[int]:
        """`tokens` if `steps` further steps are in flight."""
        return [
            tokens + steps if tokens + steps < most else most
            for tokens, most in zip(self.tokens, self.max_lengths, strict=True)
        ]


class Candidate(NamedTuple):
    """A waiting sequence that may start on the worker."""

    sequence_id: int
    urgency: tuple[float, int]
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


@dataclass(frozen=True, slots=True)
class Limits:
    """What the worker can do in one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int

    @property
    def max_running(self) -> int:
        """Most sequences on the worker: each may need a token in one and the same step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator asks for.

    `num_steps` 0: plans are as long as is good; `max_prefill_tokens` 0: in a step with decodes, as many as keep it
    within `max_mixed_step_s` seconds.
    """

    num_steps: int
    max_prefill_tokens: int
    max_mixed_step_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Credits:
    """`available` blocks on a worker where `sequences` have accounts, those being released included. `settled`: nothing
    is in flight that could give blocks back. `resting`: sequences that have blocks there besides."""

    available: int
    sequences: int
    settled: bool
    resting: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of the steps to come. None: not known yet."""

    # Steps since the worker was last disturbed.
    quiet_steps: int = 0
    # Seconds that a step of decodes alone takes.
    step_seconds: float | None = None
    # Prefill tokens that keep a step with these decodes within the policy's time.
    mixed_tokens: int | None = None
    # Others wait for a place on the worker.
    crowded: bool = False
    # Classes in which one to whom something is owed is likely to come, or waits, while others wait.
    awaited: Collection[str] = ()
    # Prompts have waited long enough for first tokens that are owed.
    rest_waited: bool = False


UNKNOWN = Forecast()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to send. Nothing if `num_steps` and `shortage` are 0; never both a plan and a shortage."""

    num_steps: int = 0
    # (sequence_id, tokens), in the order of service.
    chunks: tuple[tuple[int, int], ...] = ()
    join: tuple[int, ...] = ()
    # Candidates that start; they are in `join` too, and in `chunks` unless their KV cache was kept.
    start: tuple[int, ...] = ()
    # Blocks by which credits fall short of one more step: somebody must give way first.
    shortage: int = 0
    # Prompts wait for a first token that is owed.
    rest_waits: bool = False
    # Blocks by which they fall short of the length that is best.
    lacking: int = 0


NOTHING = Decision()


@dataclass(slots=True)
class _FirstStep:
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
    # A newcomer found no room: nobody who is less urgent takes what it waits for.
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
        if each.urgency[1] < self.newest:
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
        self.newest = max(self.newest, each.urgency[1])
        self.last_end = max(self.last_end, steps_left)


def make_plan(
    running: Running,
    waiting: Sequence[Candidate],
    credits: Credits,
    limits: Limits,
    policy: Policy,
    forecast: Forecast = UNKNOWN,
) -> Decision:
    """Decides the next plan.

    `waiting` is in order of service. The plan's worst case fits `credits`, unless what runs is alone on the worker.
    Decodes come first, then newcomers in their order and among them prefills, ahead of those that are less urgent. A
    newcomer that finds no room holds up those behind it, but no prefill: that has its place already. One whose class
    has had its part of the step holds up nobody. Its forks lend their slots to whoever is more urgent, and it is not
    complete before these are free again. Beside a token that somebody more urgent waits for, be it of a decode or of
    one that came later and passed, prefill is capped.
    """
    left = credits.available - running.growth(1, limits.block_size)
    if left < 0 and len(running) and not running.lone:
        return Decision(shortage=-left) if credits.settled else NOTHING

    short = prefill_cap(policy, forecast.mixed_tokens)
    lent = sum(prefill.lent for prefill in running.prefills)
    step = _FirstStep(
        limits=limits,
        # One token is set aside for everyone: a prefill that hits the prefix cache may decode sooner than believed.
        budget=limits.max_num_batched_tokens - (len(running) - lent),
        cap=short if running.decoding else limits.max_num_batched_tokens,
        short=short,
        blocks=left,
        running=len(running),
        accounts=credits.sequences + credits.resting,
        slots=limits.max_running - (credits.sequences - lent),
        last_end=running.last_end,
        mixed=running.decoding > 0,
        rest_left=_paced(running.prefills, waiting, forecast.awaited) if running.decoding else {},
        rest_may_wait=not forecast.rest_waited,
    )
    for each in _in_turn(running.prefills, waiting):
        if isinstance(each, Prefill):
            step.advance(each)
        elif not step.full:
            step.admit(each)
    if not step.last_end and not step.chunks:
        return NOTHING
    wanted = _wanted_steps(step, running, policy, forecast)
    steps = wanted
    if step.accounts > 1:
        steps = _affordable(running, step.start, wanted, credits.available, limits.block_size)
    return Decision(
        num_steps=steps,
        chunks=tuple(step.chunks),
        join=tuple(step.join),
        start=tuple(candidate.sequence_id for candidate in step.start),
        rest_waits=step.rest_waits,
        lacking=_growth(running, step.start, wanted, limits.block_size) - credits.available if steps < wanted else 0,
    )


def _in_turn(prefills: Sequence[Prefill], waiting: Sequence[Candidate]) -> Iterator[Prefill | Candidate]:
    """Newcomers as they are given; before each, those prefills by urgency that are more urgent than it."""
    behind = sorted(prefills, key=lambda each: (each.urgency, each.sequence_id), reverse=True)
    for candidate in waiting:
        while behind and behind[-1].urgency <= candidate.urgency:
            yield behind.pop()
        yield candidate
    yield from reversed(behind)


def _paced(prefills: Sequence[Prefill], waiting: Sequence[Candidate], awaited: Collection[str]) -> dict[str, int]:
    """By class: the prefill tokens that those to whom nothing is owed may have in a step that others may have to
    wait for. Half of what they have to do: so little work makes no long step, and much goes on as fast as it can."""
    tokens = dict.fromkeys(awaited, 0)
    for each in prefills:
        if each.class_name in tokens and not each.owed_turn:
            tokens[each.class_name] += each.left
    for newcomer in waiting:
        if newcomer.class_name in tokens and not newcomer.owed_turn and not newcomer.kept:
            tokens[newcomer.class_name] += newcomer.tokens
    return {name: ceil(paced(pending)) for name, pending in tokens.items()}


def paced(pending: float) -> float:
    """Of so many prefill tokens those in a step that somebody may have to wait for to whom something is owed."""
    return max(LEAST_PREFILL_TOKENS, pending / 2)


def prefill_cap(policy: Policy, mixed_tokens: int | None) -> int:
    """Most prefill tokens in a step with decodes; `mixed_tokens` as in Forecast."""
    if policy.max_prefill_tokens:
        return policy.max_prefill_tokens
    if mixed_tokens is None:
        return CAUTIOUS_TOKENS
    return max(LEAST_PREFILL_TOKENS, mixed_tokens)


def _wanted_steps(step: _FirstStep, running: Running, policy: Policy, forecast: Forecast) -> int:
    """The length of the plan that begins with this step as far as needs, time and the classes in it go."""
    if step.backlog:
        return 1
    steps = policy.num_steps or _good_steps(step, running, forecast)
    return max(1, min(step.last_end, steps, running.max_steps or steps))


def _good_steps(step: _FirstStep, running: Running, forecast: Forecast) -> int:
    """The length that is best. A plan that starts something ends the quiet."""
    steps = choose_steps(0 if step.start else forecast.quiet_steps, forecast.step_seconds)
    if (forecast.crowded or step.awaits_slots) and running.first_end:
        # The place that an end frees is filled in the next plan.
        steps = min(steps, max(running.first_end, least_steps(forecast.step_seconds)))
    return steps


def _affordable(running: Running, start: Sequence[Candidate], steps: int, available: int, block_size: int) -> int:
    """As many of `steps` as credits allow, at least one: that one has been checked."""
    low, high = 1, steps
    middle = steps
    while low < high:
        if _growth(running, start, middle, block_size) <= available:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _growth(running: Running, start: Sequence[Candidate], steps: int, block_size: int) -> int:
    """Blocks beyond what is reserved that the plan can take if it has so many steps."""
    return running.growth(steps, block_size) + sum(each.blocks(steps, block_size) for each in start)
