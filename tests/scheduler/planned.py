"""What the planner sees of a worker: rows of what runs, and newcomers."""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler.first_step import Candidate, Prefill
from scheduler.planner import Credits, Running
from scheduler.policy import Limits, Policy

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, block_size=4)
POLICY = Policy(num_steps=8, max_prefill_tokens=0)
ADAPTIVE = Policy(num_steps=0, max_prefill_tokens=0)
PLENTY = 1000


class Row(NamedTuple):
    """One running sequence; `left`: tokens of its prefill, 0: it decodes; `forks` wait for it, and lend their slots if
    `before_end` of its tokens surely do not complete it."""

    key: int
    left: int
    tokens: int
    max_length: int
    steps_left: int
    reserved: int
    joined: bool = True
    forks: int = 0
    before_end: int | None = None

    @property
    def lent(self) -> int:
        return 0 if self.before_end is None else self.forks


def decoder(key: int, tokens: int = 10, steps_left: int = 50, max_length: int = 200) -> Row:
    return Row(key, 0, tokens, max_length, steps_left, -(-tokens // 4))


def prefill(key: int, left: int, tokens: int = 100, *, joined: bool = True, forks: int = 0) -> Row:
    return Row(key, left, tokens, 200, 200 - tokens, -(-tokens // 4) * (1 + forks), joined, forks)


def candidate(key: int, tokens: int, max_length: int, place: float = 99.0, **changes: Any) -> Candidate:
    """A newcomer; behind all that run unless `place` says otherwise."""
    return Candidate(key, (place, key), tokens, max_length, **changes)


def columns(*rows: Row, lone: bool | None = None) -> Running:
    """What the planner sees of them."""
    decoding = [row for row in rows if not row.left]
    ends = [row.steps_left for row in decoding]
    prefills = [
        Prefill(row.key, (float(row.key), row.key), row.left, row.steps_left, row.joined, row.lent, row.before_end or 0)
        for row in rows
        if row.left
    ]
    return Running(
        sequence_ids=[row.key * 10 + index for row in rows for index in range(1 + row.forks)],
        tokens=[row.tokens for row in rows for _ in range(1 + row.forks)],
        max_lengths=[row.max_length for row in rows for _ in range(1 + row.forks)],
        reserved=sum(row.reserved for row in rows),
        prefills=prefills,
        decoding=len(decoding),
        last_end=max(ends, default=0),
        first_end=min((end for end in ends if end), default=0),
        lone=len(rows) == 1 and not rows[0].forks if lone is None else lone,
    )


def credits_for(available: int, sequences: int, *, settled: bool = True) -> Credits:
    return Credits(available, sequences, settled)
