"""Runs plans step by step on the thread that owns the device.

Before each step it looks at its mailbox, so that a newer plan, a release or a lost scheduler takes effect at the next
step boundary whatever a plan's length. It knows neither text nor tenants, and never decides order or priority.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
import torch

from tercet.errors import EngineFaultError

from . import _core
from .batch import Row, build_batch
from .kv_cache import KVCache
from .messages import (
    Attach,
    Command,
    Detach,
    Ended,
    EndReason,
    Event,
    Failure,
    NewSequence,
    Plan,
    PlanDone,
    PrefillProgress,
    Release,
    Released,
    Shutdown,
    StepResult,
)
from .model.decoder import Model
from .ops.sampler import sample
from .sequence import Sequence

log = structlog.get_logger()

# A worker without work for so long, in seconds, has the time to verify its pool, which takes milliseconds.
_IDLE_CHECK_S = 1.0


class Executor:
    """The one owner of model, KV cache and sequences.

    `submit` may be called from any thread; events go to the `emit` of the last Attach, from the executor's thread.
    `check_every_step` verifies the block pool after each step (for tests); otherwise it is verified when idle for a
    second, and a mismatch is logged and does not stop the worker. `on_death` is called, from the executor's thread, if
    a bug ends it: nothing that is submitted afterwards is answered.
    """

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        device: torch.device,
        *,
        check_every_step: bool = False,
        on_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._device = device
        self._check_every_step = check_every_step
        self._on_death = on_death
        self._clock = clock
        self._mailbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        # Of commands that were submitted and not yet obeyed: the mailbox does not count the one in the thread's hands.
        self._num_unread = 0
        self._unread_lock = threading.Lock()
        self._stopped = False
        self._sequences: dict[int, Sequence] = {}
        self._refused: list[NewSequence] = []  # to be told with the next step
        self._plans: deque[Plan] = deque()
        self._steps_run = 0  # of the plan at the head of _plans
        self._emit: Callable[[Event], None] | None = None
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

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
        return not (self._num_unread or self._plans or self.num_sequences)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after the step that runs now, and waits for it at most `timeout_s` seconds."""
        self.submit(Shutdown())
        self._thread.join(timeout_s)

    def submit(self, command: Command) -> None:
        """Hands over a command; it takes effect before the next step. Commands keep their order."""
        with self._unread_lock:
            self._num_unread += 1
        self._mailbox.put(command)

    def obey(self) -> None:
        """Obeys all commands that wait. Never blocks. Like `step`, for the thread, or instead of it where none runs."""
        while not self._stopped:
            try:
                command = self._mailbox.get_nowait()
            except queue.Empty:
                return
            self._obey(command)

    def step(self) -> None:
        """Runs one step of the plan at the head, and ends the plan if that was its last or there is nothing to do."""
        if self._plans:
            with torch.inference_mode():
                self._advance(self._plans[0])

    def _run(self) -> None:
        try:
            while not self._stopped:
                if not self._plans:
                    self._obey(self._wait())
                self.obey()
                self.step()
        except Exception:
            # State that a bug has touched is not to be computed with.
            log.exception("executor_died")
            self._on_death()

    def _wait(self) -> Command:
        try:
            return self._mailbox.get(timeout=_IDLE_CHECK_S)
        except queue.Empty:
            self._check_pool()
        return self._mailbox.get()

    def _obey(self, command: Command) -> None:
        match command:
            case NewSequence():
                self._add(command)
            case Plan():
                self._accept(command)
            case Release():
                self._release(command)
            case Attach():
                self._forget_all()
                self._emit = command.emit
            case Detach():
                # Not `is`: a bound method is a new object each time it is taken.
                if self._emit == command.emit:
                    self._forget_all()
                    self._emit = None
            case Shutdown():
                self._forget_all()
                self._stopped = True
        with self._unread_lock:
            self._num_unread -= 1

    def _add(self, spec: NewSequence) -> None:
        if old := self._sequences.pop(spec.sequence_id, None):
            log.error("sequence_id_reused", sequence_id=spec.sequence_id)
            old.table.release()
        if spec.problem is not None:
            self._refused.append(spec)
            return
        self._sequences[spec.sequence_id] = Sequence(spec, self._kv_cache.new_table(spec.prefix_salt))

    def _accept(self, plan: Plan) -> None:
        while self._plans and self._plans[0].plan_seq <= plan.revoke_through:
            self._finish_plan(revoked=True)
        for sequence_id in plan.join:
            # An unknown id has ended while the plan was on its way.
            if sequence := self._sequences.get(sequence_id):
                sequence.in_decode_set = True
        self._plans.append(plan)

    def _release(self, command: Release) -> None:
        for sequence_id in command.sequence_ids:
            sequence = self._sequences.pop(sequence_id, None)
            used = sequence.table.num_blocks if sequence else 0
            freed = sequence.table.release() if sequence else 0
            log.info(
                "sequence_released", sequence_id=sequence_id, cause=command.cause.value, found=sequence is not None,
                blocks_freed=freed,
            )  # fmt: skip
            self._send(Released(sequence_id, command.cause, sequence is not None, used, freed, self._kv_cache.counts()))

    def _forget_all(self) -> None:
        if self._sequences:
            log.info("sequences_dropped", count=len(self._sequences))
        for sequence in self._sequences.values():
            sequence.table.release()
        self._sequences.clear()
        self._refused.clear()
        self._plans.clear()
        self._steps_run = 0

    def _advance(self, plan: Plan) -> None:
        started = self._clock()
        ended = [self._refusal(spec) for spec in self._refused]
        self._refused.clear()
        rows = self._rows(plan, ended)
        if not rows and not ended:
            self._finish_plan(revoked=False)
            return
        tokens, prefills = self._compute(rows, ended)
        if self._check_every_step:
            self._kv_cache.check()
        result = StepResult(
            plan_seq=plan.plan_seq,
            step=self._steps_run,
            sequence_ids=tuple(tokens),
            token_ids=tuple(tokens.values()),
            prefills=tuple(prefills),
            ended=tuple(ended),
            blocks=self._kv_cache.counts(),
            step_us=int((self._clock() - started) * 1e6),
        )
        self._steps_run += 1
        self._send(result)
        if self._steps_run >= plan.num_steps:
            self._finish_plan(revoked=False)
        # Last: whoever waits for the tokens need not wait for the log.
        log.debug("step", plan_seq=result.plan_seq, step=result.step, tokens=len(tokens), step_us=result.step_us)

    def _rows(self, plan: Plan, ended: list[Ended]) -> list[Row]:
        """What this step computes, decodes first; blocks are reserved. A sequence without room goes to `ended`."""
        wanted = [(sequence, 1) for sequence in self._sequences.values() if sequence.decodes]
        if self._steps_run == 0:
            for chunk in plan.chunks:
                sequence = self._sequences.get(chunk.sequence_id)
                # A prefix hit may have completed the prefill earlier than the scheduler could know.
                if sequence is None or sequence.prefill_complete or chunk.num_tokens == 0:
                    continue
                if sequence.num_computed == 0:
                    sequence.find_prefix()
                wanted.append((sequence, min(chunk.num_tokens, sequence.num_missing)))
        rows = []
        for sequence, count in wanted:
            try:
                self._kv_cache.reserve(sequence.table, sequence.num_computed + count)
            except _core.OutOfBlocks as error:
                # Credits make this impossible; a scheduler that breaks them must not take the others down.
                ended.append(self._fail(sequence, str(error)))
                continue
            rows.append(Row(sequence, count))
        return rows

    def _compute(self, rows: list[Row], ended: list[Ended]) -> tuple[dict[int, int], list[PrefillProgress]]:
        """Runs the forward pass and sampling; returns the token of each sequence that got one, and prefill progress."""
        if not rows:
            return {}, []
        try:
            chosen = self._forward(rows)
        except Exception as error:  # a fault of the device or a bug: the batch fails, the worker lives
            log.exception("step_failed", sequences=len(rows))
            ended.extend(self._fail(row.sequence, f"the step failed: {type(error).__name__}") for row in rows)
            return {}, []
        tokens: dict[int, int] = {}
        prefills: list[PrefillProgress] = []
        next_token = iter(chosen)
        for row in rows:
            sequence = row.sequence
            sequence_id, in_prefill = sequence.spec.sequence_id, not sequence.prefill_complete
            token_id = next(next_token) if row.gets_token else None
            if token_id is not None and token_id < 0:
                # Before its blocks are published: what made the logits so must not be found by the next prompt.
                ended.append(self._fail(sequence, "the model's logits are not finite"))
                continue
            sequence.advance(row.count)
            if in_prefill:
                prefills.append(PrefillProgress(sequence_id, sequence.num_computed, sequence.num_cached))
            if token_id is None:
                continue
            reason = sequence.append(token_id)
            tokens[sequence_id] = token_id
            if reason is not None:
                ended.append(self._end(sequence, reason, stop_token_id=token_id if reason is EndReason.STOP else 0))
        return tokens, prefills

    def _forward(self, rows: list[Row]) -> list[int]:
        batch = build_batch(rows, self._device)
        logits = self._model.forward(
            batch.token_ids, batch.positions, self._kv_cache.layers, batch.attention, batch.logit_rows
        )  # [R, V]
        if logits.shape[0] == 0:
            return []
        return sample(logits, batch.sampling).tolist()

    def _end(
        self, sequence: Sequence, reason: EndReason, *, stop_token_id: int = 0, failure: Failure | None = None
    ) -> Ended:
        del self._sequences[sequence.spec.sequence_id]
        used = sequence.table.num_blocks
        return Ended(sequence.spec.sequence_id, reason, used, sequence.table.release(), stop_token_id, failure)

    def _fail(self, sequence: Sequence, message: str) -> Ended:
        log.error("sequence_failed", sequence_id=sequence.spec.sequence_id, problem=message)
        return self._end(sequence, EndReason.FAILED, failure=Failure(EngineFaultError.reason, message))

    def _refusal(self, spec: NewSequence) -> Ended:
        log.error("sequence_refused", sequence_id=spec.sequence_id, problem=spec.problem)
        failure = Failure(EngineFaultError.reason, f"the worker cannot run the sequence: {spec.problem}")
        return Ended(spec.sequence_id, EndReason.FAILED, 0, 0, failure=failure)

    def _finish_plan(self, *, revoked: bool) -> None:
        plan = self._plans.popleft()
        self._send(PlanDone(plan.plan_seq, self._steps_run, revoked, self._kv_cache.counts()))
        self._steps_run = 0

    def _send(self, event: Event) -> None:
        if self._emit is not None:
            self._emit(event)

    def _check_pool(self) -> None:
        try:
            self._kv_cache.check()
        except _core.PoolCorrupt as error:
            log.error("block_pool_broken", problem=str(error))
