"""Makes one plan for one worker: a pure function of what runs, what waits, credits and limits.

Knows nothing of time, streams or how the numbers were found; the same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .credits import blocks_for


class Running(NamedTuple):
    """A sequence on the worker as the next plan will find it. A NamedTuple because hundreds are made for every plan."""

    sequence_id: int
    arrival: int
    # Tokens of its prefill that no plan in flight computes; 0: it decodes.
    prefill_left: int
    # Tokens it may hold when all plans in flight have run, in the worst case.
    tokens: int
    max_length: int
    # Steps until its end at the latest, after what the plans in flight are expected to do.
    steps_left: int
    # Blocks it has credit for.
    reserved: int
    # Whether its join is on its way or done.
    joined: bool


class Candidate(NamedTuple):
    """A waiting sequence that may start on the worker."""

    sequence_id: int
    tokens: int
    max_length: int


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
    """What the operator asks for. `max_prefill_tokens` 0: no cap."""

    num_steps: int
    max_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Credits:
    """`available` blocks on a worker where `sequences` have accounts, those being released included. `settled`: nothing
    is in flight that could give blocks back."""

    available: int
    sequences: int
    settled: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What to send. Nothing if `num_steps` is 0 and `preempt` is empty; never both a plan and preemptions."""

    num_steps: int = 0
    # (sequence_id, tokens), in the order of service.
    chunks: tuple[tuple[int, int], ...] = ()
    join: tuple[int, ...] = ()
    # Candidates that start; they are in `chunks` and `join` too.
    start: tuple[int, ...] = ()
    # Running sequences that must give way first.
    preempt: tuple[int, ...] = ()


NOTHING = Decision()


def make_plan(
    running: Sequence[Running], waiting: Sequence[Candidate], credits: Credits, limits: Limits, policy: Policy
) -> Decision:
    """Decides the next plan.

    `waiting` is in order of service. The plan's worst case fits `credits`, unless the sequence is alone on the worker:
    then admission has made sure that it fits. Decodes come first, then prefills by arrival, then new sequences; the
    oldest sequence always advances.
    """
    size = limits.block_size
    left = credits.available - _growth(running, 1, size)
    if left < 0 and running and not (len(running) == 1 and credits.sequences == 1):
        return Decision(preempt=_victims(running, -left, size)) if credits.settled else NOTHING

    decoding = any(not each.prefill_left for each in running)
    # One token is set aside for everyone: a prefill that hits the prefix cache may decode sooner than believed.
    budget = limits.max_num_batched_tokens - len(running)
    cap = policy.max_prefill_tokens if decoding and policy.max_prefill_tokens else limits.max_num_batched_tokens
    chunks: list[tuple[int, int]] = []
    join: list[int] = []
    # Prefill work that has to wait for the next plan: then this one must be short.
    backlog = False
    for each in sorted((each for each in running if each.prefill_left), key=lambda each: each.arrival):
        count = min(each.prefill_left, budget + 1, cap)
        backlog |= count < each.prefill_left
        if count > 0:
            chunks.append((each.sequence_id, count))
            budget -= count - 1
            cap -= count
            if not each.joined:
                join.append(each.sequence_id)

    start: list[Candidate] = []
    for candidate in waiting:
        if len(running) + len(start) >= limits.max_running:
            break
        count = min(candidate.tokens, budget, cap)
        if count <= 0:
            backlog = True
            break
        need = blocks_for(min(candidate.tokens + 1, candidate.max_length), size)
        # Everyone who runs keeps room to grow by a block, or the newcomer would soon be preempted again.
        headroom = len(running) + len(start)
        if need + headroom > left and credits.sequences + len(start) > 0:
            break
        left -= need
        start.append(candidate)
        chunks.append((candidate.sequence_id, count))
        join.append(candidate.sequence_id)
        budget -= count
        cap -= count
        backlog |= count < candidate.tokens

    steps = _steps(running, start, dict(chunks), policy.num_steps)
    if not steps and not chunks:
        return NOTHING
    steps = 1 if backlog else max(1, steps)
    if credits.sequences + len(start) > 1:
        steps = _affordable(running, start, steps, credits.available, size)
    return Decision(
        num_steps=steps,
        chunks=tuple(chunks),
        join=tuple(join),
        start=tuple(candidate.sequence_id for candidate in start),
    )


def _growth(running: Sequence[Running], steps: int, block_size: int) -> int:
    """Blocks beyond their reservations that `steps` further steps can take."""
    total = 0
    for each in running:
        tokens = each.tokens + steps
        if tokens > each.max_length:
            tokens = each.max_length
        # blocks_for, in line: this runs for every sequence, several times a plan.
        total += -(-tokens // block_size) - each.reserved
    return total


def _affordable(
    running: Sequence[Running], start: Sequence[Candidate], steps: int, available: int, block_size: int
) -> int:
    """As many of `steps` as credits allow, at least one: that one has been checked."""
    low, high = 1, steps
    while low < high:
        middle = (low + high + 1) // 2
        if _growth(running, middle, block_size) + _start_blocks(start, middle, block_size) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def _start_blocks(start: Sequence[Candidate], steps: int, block_size: int) -> int:
    return sum(blocks_for(min(each.tokens + steps, each.max_length), block_size) for each in start)


def _steps(running: Sequence[Running], start: Sequence[Candidate], chunks: dict[int, int], most: int) -> int:
    """As many steps as the longest sequence that decodes in this plan needs, at most `most`; 0 if none does."""
    longest = 0
    for each in running:
        if each.steps_left > longest and each.prefill_left <= chunks.get(each.sequence_id, 0):
            longest = each.steps_left
            if longest >= most:
                return most
    for candidate in start:
        if chunks[candidate.sequence_id] >= candidate.tokens:
            longest = max(longest, candidate.max_length - candidate.tokens)
    return min(longest, most)


def _victims(running: Sequence[Running], shortage: int, block_size: int) -> tuple[int, ...]:
    """The latest arrivals whose going makes up for `shortage` blocks, never all."""
    victims: list[int] = []
    for each in sorted(running, key=lambda each: each.arrival, reverse=True)[:-1]:
        if shortage <= 0:
            break
        victims.append(each.sequence_id)
        shortage -= blocks_for(min(each.tokens + 1, each.max_length), block_size)
    return tuple(victims)
