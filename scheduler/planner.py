"""Makes one plan for one worker: a pure function of what runs, what waits, credits, limits and a forecast.

Knows nothing of clocks, streams or how the numbers were found; the same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from .first_step import Candidate, FirstStep, Prefill
from .plan_length import choose_steps, least_steps
from .policy import Limits, Policy, paced, prefill_cap


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
    # Tokens that those who decode attend to, together.
    context_tokens: int = 0

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
    step = FirstStep(
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
    """Newcomers as they are given; before each, those prefills in their order that have a place before its own."""
    behind = sorted(prefills, key=lambda each: (each.place, each.sequence_id), reverse=True)
    for candidate in waiting:
        while behind and behind[-1].place <= candidate.place:
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


def _wanted_steps(step: FirstStep, running: Running, policy: Policy, forecast: Forecast) -> int:
    """The length of the plan that begins with this step as far as needs, time and the classes in it go."""
    if step.backlog:
        return 1
    steps = policy.num_steps or _good_steps(step, running, forecast)
    return max(1, min(step.last_end, steps, running.max_steps or steps))


def _good_steps(step: FirstStep, running: Running, forecast: Forecast) -> int:
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
