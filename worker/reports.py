"""What the scheduler is told of steps, plans and blocks. Knows no commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import structlog

from .kv_cache import KVCache
from .messages import BlockCounts, Released, Resting, StepResult
from .outbox import Outbox
from .outcome import Outcome
from .pipeline import Pipeline
from .plan_queue import PlanQueue
from .sequences import Sequences
from .step_counts import StepCounts

log = structlog.get_logger()


class Reports:
    """Each step is one of the plan at the head, which is over with its last one."""

    def __init__(
        self,
        outbox: Outbox,
        plans: PlanQueue,
        sequences: Sequences,
        kv_cache: KVCache,
        works: Pipeline,
        counts: StepCounts,
        clock: Callable[[], float],
    ) -> None:
        """`clock` gives seconds."""
        self._step_counts = counts
        self._outbox = outbox
        self._plans = plans
        self._sequences = sequences
        self._kv_cache = kv_cache
        self._works = works
        self._clock = clock
        self._since = 0.0  # what the next step has taken, if the device does not know

    def begin_step(self) -> None:
        """A step begins, and none is before it."""
        self._since = self._clock()
        self._step_counts.begin(self._since)

    def step(self, outcome: Outcome) -> None:
        """A step of the plan at the head was computed, or there was only something to tell."""
        now = self._clock()
        took_us = int((now - self._since) * 1e6) if outcome.step_us is None else outcome.step_us
        self._since = now
        result = StepResult(
            plan_seq=self._plans.head.plan_seq,
            step=self._plans.step,
            sequence_ids=tuple(outcome.sequence_ids),
            token_ids=tuple(outcome.token_ids),
            prefills=tuple(outcome.prefills),
            ended=(*self._sequences.take_untold(), *outcome.ended),
            blocks=self._counts(),
            step_us=took_us,
            logprobs=tuple(outcome.logprobs),
            prompt_logprobs=tuple(outcome.prompt_logprobs),
        )
        self._plans.note_step(took_us)
        self._step_counts.step(outcome, took_us, result.blocks, now)
        self._outbox.put(result)
        if self._plans.has_run:
            self.plan_done(revoked=False)
        log.debug("step", plan_seq=result.plan_seq, step=result.step, tokens=len(result.token_ids), step_us=took_us)

    def plan_done(self, *, revoked: bool) -> None:
        """The plan at the head is over."""
        counts = self._counts()
        self._step_counts.plan_done(counts, revoked=revoked)
        self._outbox.put(self._plans.finish(counts, revoked=revoked))

    def answers(self, answers: Iterable[Released | Resting]) -> None:
        """Sequences were let go, or let rest, of which nothing is on its way."""
        num_ahead = self._works.num_ahead
        for answer in answers:
            blocks = self._step_counts.blocks = answer.blocks.without(num_ahead)
            self._outbox.put(dataclasses.replace(answer, blocks=blocks))

    def cache_changes(self) -> None:
        """What the prefix cache lost and got. Last: whoever waits for tokens need not wait for these."""
        self._outbox.put(self._kv_cache.changes())

    def _counts(self) -> BlockCounts:
        """The pool, as if nothing were reserved ahead: those who lend blocks count what is in use."""
        return self._kv_cache.counts().without(self._works.num_ahead)
