"""Runs plans step by step on the thread that owns the device.

At each step boundary it looks at its mailbox, so that a newer plan, a release or a lost scheduler takes effect there
whatever a plan's length. It knows neither text nor tenants, and never decides order or priority.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
import torch

from . import _core
from .kv_cache import KVCache
from .mailbox import Mailbox
from .messages import (
    Attach,
    BlockCounts,
    Command,
    Detach,
    NewSequence,
    Plan,
    Release,
    Resume,
    Shutdown,
    StepResult,
)
from .mixed_step import MixedStep, missing_chunks
from .outbox import Outbox
from .outcome import Outcome
from .plan_queue import PlanQueue
from .run import Run
from .sequence import Sequence
from .sequences import Sequences
from .steps import Steps
from .swap_space import SwapSpace

log = structlog.get_logger()

# A worker without work for so long, in seconds, has the time to verify its pool, which takes milliseconds.
_IDLE_CHECK_S = 1.0


class Executor:
    """The one owner of the device, KV cache and sequences.

    `submit` may be called from any thread; events go to the `emit` of the last Attach, from the executor's thread.
    `check_every_step` verifies the block pool after each step (for tests); otherwise it is verified when idle for a
    second, and a mismatch is logged and does not stop the worker. `on_death` is called, from the executor's thread, if
    a bug ends it: nothing that is submitted afterwards is answered.
    """

    def __init__(
        self,
        steps: Steps,
        kv_cache: KVCache,
        swap_space: SwapSpace | None = None,
        *,
        check_every_step: bool = False,
        on_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._steps = steps
        self._kv_cache = kv_cache
        self._check_every_step = check_every_step
        self._on_death = on_death
        self._clock = clock
        self._mailbox = Mailbox()
        self._stopped = False
        self.swap_space = SwapSpace(kv_cache, 0) if swap_space is None else swap_space
        self._sequences = Sequences(kv_cache, self.swap_space)
        self._plans = PlanQueue()
        self._run: Run | None = None
        self._outbox = Outbox()
        self._thread = threading.Thread(target=self._live, name="executor", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def num_sequences(self) -> int:
        """Sequences the worker has. May be read from any thread."""
        return len(self._sequences)

    @property
    def idle(self) -> bool:
        """Whether there is no sequence, no plan and no command left to obey. May be read from any thread."""
        return not (len(self._mailbox) or self._plans or self.num_sequences)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after the step that runs now, and waits for it at most `timeout_s` seconds."""
        self.submit(Shutdown())
        self._thread.join(timeout_s)

    def submit(self, command: Command) -> None:
        """Hands over a command; it takes effect at the next step boundary. Commands keep their order."""
        self._mailbox.put(command)
        only_more = isinstance(command, NewSequence) or (isinstance(command, Plan) and not command.revoke_through)
        if not only_more:
            # A guess: what it disturbs is known to the executor's thread alone. A run that ends in vain begins again.
            self._steps.stop()

    def obey(self) -> None:
        """Obeys all commands that wait. Never blocks. Like `step`, for the thread, or instead of it where none runs.

        What the device has computed is told before a command that changes what it computes is obeyed.
        """
        self._obey_all()
        self._outbox.flush()

    def step(self) -> None:
        """Runs one step of the plan at the head, and ends the plan if that was its last or there is nothing to do."""
        self._step()
        self._outbox.flush()

    def _live(self) -> None:
        try:
            while not self._stopped:
                if not self._plans:
                    self._wait()
                self._obey_all()
                self._step()
            self._outbox.flush()
        except Exception:
            # State that a bug has touched is not to be computed with.
            log.exception("executor_died")
            self._on_death()

    def _wait(self) -> None:
        self._outbox.flush()
        if not self._mailbox.wait(_IDLE_CHECK_S):
            self._check_pool()
            self._mailbox.wait(None)

    def _obey_all(self) -> None:
        while not self._stopped and (command := self._mailbox.first()) is not None:
            if self._disturbs(command):
                self._end_run()
            self._obey(command)
            self._mailbox.take()

    def _disturbs(self, command: Command) -> bool:
        """Whether a run must end before a command is obeyed."""
        match command:
            case NewSequence():
                return self._sequences.knows(command)
            case Plan():
                return self._plans.is_revoked_by(command)
            case _:
                return True

    def _obey(self, command: Command) -> None:
        match command:
            case NewSequence():
                self._sequences.add(command)
            case Plan():
                self._accept(command)
            case Release():
                for released in self._sequences.release(command.sequence_ids, command.cause):
                    self._outbox.put(released)
            case Resume():
                self._sequences.resume(command.sequence_ids)
            case Attach():
                self._forget_all()
                self._outbox.open(command.emit)
                self._outbox.put(self._kv_cache.contents())
            case Detach():
                if self._outbox.is_for(command.emit):
                    self._forget_all()
                    self._outbox.close()
            case Shutdown():
                self._forget_all()
                self._stopped = True

    def _accept(self, plan: Plan) -> None:
        while self._plans.is_revoked_by(plan):
            self._finish_plan(revoked=True)
        # A run that reaches to the end of all plans goes on into this one.
        if self._run is not None and plan.goes_on and self._run.num_left == self._plans.num_steps:
            self._run.extend(plan.num_steps)
        self._plans.append(plan)

    def _forget_all(self) -> None:
        self._sequences.clear()
        self._plans.clear()

    @torch.inference_mode()
    def _step(self) -> None:
        if not self._plans:
            return
        started = self._clock()
        outcome = self._next_of_run() if self._run is not None else self._next()
        if outcome is None:
            return
        self._report(outcome, started)
        if self._run is not None and self._run.over:
            self._end_run()
        # Last: whoever waits for the tokens need not wait for these.
        self._outbox.put(self._kv_cache.changes())

    def _next(self) -> Outcome | None:
        """The step at the head, where no run is on its way; None if there is none to report."""
        chunks: list[tuple[Sequence, int]] = []
        if self._plans.step == 0:
            # Not when it is read: for what comes back from host memory the plans before have neither tokens nor blocks.
            self._sequences.join(self._plans.head.join)
            chunks = missing_chunks(self._sequences, self._plans.head.chunks)
        rows = list(self._sequences.decoding())
        needs_host = any(row.needs_host for row in rows)
        if rows and not chunks and not needs_host and self._begin_run(rows):
            return self._next_of_run()
        if rows or chunks:
            wanted = [*((row, 1) for row in rows), *chunks]
            mixed = MixedStep(self._steps, self._kv_cache, self._sequences, wanted)
            mixed.begin()
            self._outbox.flush()
            return mixed.finish()
        if self._sequences.has_untold:
            return Outcome()
        self._finish_plan(revoked=False)
        return None

    def _begin_run(self, rows: list[Sequence]) -> bool:
        """Begins a run to the end of the plan, and of those behind it that only go on; False if it has no room."""
        num_steps = self._plans.num_steps_alike
        try:
            self._run = Run(self._steps, self._kv_cache, self._sequences, rows, num_steps)
        except _core.OutOfBlocks:
            return False
        self._run.begin()
        # What was submitted in between found no run to stop, and is looked at first.
        if len(self._mailbox):
            self._run.stop()
        return True

    def _next_of_run(self) -> Outcome | None:
        assert self._run is not None
        self._outbox.flush()
        outcome = self._run.next()
        if outcome is None:
            self._end_run()
        return outcome

    def _end_run(self) -> None:
        """Stops the run, if there is one, and reports what is computed until it has ended.

        What is told leaves with the next step: that of who stopped it should not wait for others' news.
        """
        if self._run is None:
            return
        self._run.stop()
        while (outcome := self._run.next()) is not None:
            self._report(outcome, self._clock())
        self._run.close()
        self._run = None
        self._outbox.put(self._kv_cache.changes())

    def _report(self, outcome: Outcome, started: float) -> None:
        plan_seq, step = self._plans.head.plan_seq, self._plans.step
        ended = (*self._sequences.take_untold(), *outcome.ended)
        if self._check_every_step:
            self._sequences.check()
        took_us = int((self._clock() - started) * 1e6) if outcome.step_us is None else outcome.step_us
        result = StepResult(
            plan_seq=plan_seq,
            step=step,
            sequence_ids=tuple(outcome.sequence_ids),
            token_ids=tuple(outcome.token_ids),
            prefills=tuple(outcome.prefills),
            ended=ended,
            blocks=self._counts(),
            step_us=took_us,
            logprobs=tuple(outcome.logprobs),
        )
        self._plans.note_step(took_us)
        self._outbox.put(result)
        if self._plans.has_run:
            self._finish_plan(revoked=False)
        log.debug("step", plan_seq=plan_seq, step=step, tokens=len(result.token_ids), step_us=took_us)

    def _counts(self) -> BlockCounts:
        """The pool, as if nothing were reserved ahead: those who lend blocks count what is in use."""
        counts, run = self._kv_cache.counts(), self._run
        return counts if run is None else counts.without(run.num_ahead)

    def _finish_plan(self, *, revoked: bool) -> None:
        self._outbox.put(self._plans.finish(self._counts(), revoked=revoked))

    def _check_pool(self) -> None:
        try:
            self._sequences.check()
        except _core.PoolCorrupt as error:
            log.error("block_pool_broken", problem=str(error))
