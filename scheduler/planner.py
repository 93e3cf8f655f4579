"""Makes one plan for one worker: a pure function of what runs, what waits, credits, limits and a forecast.

Knows nothing of clocks, streams or how the numbers were found; the same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    # All there is on the worker is one sequence, or a group that no plan in flight can fork: admission has made sure
    # that its next step fits.
    lone: bool

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
    tokens: int
    max_length: int
    # Itself and the forks that start with it.
    members: int = 1
    # The worker's host memory has its KV cache.
    swapped: bool = False

    def blocks(self, steps: int, block_size: int) -> int:
        """Blocks it may hold after `steps` steps of decoding. Forks share the full blocks of the prompt."""
        blocks = blocks_for(min(self.tokens + steps, self.max_length), block_size)
        return blocks + (self.members - 1) * (blocks - self.tokens // block_size)


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
    is in flight that could give blocks back."""

    available: int
    sequences: int
    settled: bool


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


UNKNOWN = Forecast()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to send. Nothing if `num_steps` and `shortage` are 0; never both a plan and a shortage."""

    num_steps: int = 0
    # (sequence_id, tokens), in the order of service.
    chunks: tuple[tuple[int, int], ...] = ()
    join: tuple[int, ...] = ()
    # Candidates that start; they are in `join` too, and in `chunks` unless they are swapped.
    start: tuple[int, ...] = ()
    # Blocks by which credits fall short of one more step: somebody must give way first.
    shortage: int = 0


NOTHING = Decision()


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
    Decodes come first, then prefills by urgency, then new sequences; the most urgent one always advances.
    """
    size = limits.block_size
    left = credits.available - running.growth(1, size)
    if left < 0 and len(running) and not running.lone:
        return Decision(shortage=-left) if credits.settled else NOTHING

    # One token is set aside for everyone: a prefill that hits the prefix cache may decode sooner than believed.
    budget = limits.max_num_batched_tokens - len(running)
    cap = prefill_cap(policy, forecast.mixed_tokens) if running.decoding else limits.max_num_batched_tokens
    chunks: list[tuple[int, int]] = []
    join: list[int] = []
    last_end = running.last_end
    # Prefill work that has to wait for the next plan: then this one must be short.
    backlog = False
    for each in sorted(running.prefills, key=_urgency):
        count = min(each.left, budget + 1, cap)
        if count < each.left:
            backlog = True
        else:
            last_end = max(last_end, each.steps_left)
        if count > 0:
            chunks.append((each.sequence_id, count))
            budget -= count - 1
            cap -= count
        if not each.joined and (count > 0 or not each.left):
            join.append(each.sequence_id)

    start: list[Candidate] = []
    members = 0
    for candidate in waiting:
        if len(running) + members + candidate.members > limits.max_running:
            break
        room = budget - (candidate.members - 1)
        count = min(1, room) if candidate.swapped else min(candidate.tokens, room, cap)
        if count <= 0:
            backlog = True
            break
        need = candidate.blocks(1, size)
        # Everyone who runs keeps room to grow by a block, or the newcomer would soon be preempted again.
        if need + len(running) + members > left and credits.sequences + members > 0:
            break
        left -= need
        start.append(candidate)
        members += candidate.members
        join.append(candidate.sequence_id)
        budget = room - count
        if not candidate.swapped:
            chunks.append((candidate.sequence_id, count))
            cap -= count
        if candidate.swapped or count == candidate.tokens:
            last_end = max(last_end, candidate.max_length - candidate.tokens)
        else:
            backlog = True

    if not last_end and not chunks:
        return NOTHING
    steps = 1 if backlog else max(1, min(last_end, _wanted_steps(running, policy, forecast, starting=bool(start))))
    if credits.sequences + members > 1:
        steps = _affordable(running, start, steps, credits.available, size)
    return Decision(
        num_steps=steps,
        chunks=tuple(chunks),
        join=tuple(join),
        start=tuple(candidate.sequence_id for candidate in start),
    )


def _urgency(prefill: Prefill) -> tuple[float, int]:
    return prefill.urgency


def prefill_cap(policy: Policy, mixed_tokens: int | None) -> int:
    """Most prefill tokens in a step with decodes; `mixed_tokens` as in Forecast."""
    if policy.max_prefill_tokens:
        return policy.max_prefill_tokens
    if mixed_tokens is None:
        return CAUTIOUS_TOKENS
    return max(LEAST_PREFILL_TOKENS, mixed_tokens)


def _wanted_steps(running: Running, policy: Policy, forecast: Forecast, *, starting: bool) -> int:
    """The length of the plan as far as time goes. One that starts something ends the quiet."""
    if policy.num_steps:
        return policy.num_steps
    steps = choose_steps(0 if starting else forecast.quiet_steps, forecast.step_seconds)
    if forecast.crowded and running.first_end:
        # The place that an end frees is filled in the next plan.
        steps = min(steps, max(running.first_end, least_steps(forecast.step_seconds)))
    return steps


def _affordable(running: Running, start: Sequence[Candidate], steps: int, available: int, block_size: int) -> int:
    """As many of `steps` as credits allow, at least one: that one has been checked."""
    low, high = 1, steps
    middle = steps
    while low < high:
        needed = running.growth(middle, block_size) + sum(each.blocks(middle, block_size) for each in start)
        if needed <= available:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
