"""Runs plans step by step on the thread that owns the device.

Before each step it looks at its mailbox, so that a newer plan, a release or a lost scheduler takes effect at the next
step boundary whatever a plan's length. It knows neither text nor tenants, and never decides order or priority.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import structlog
import torch

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
    NewSequence,
    Plan,
    PlanDone,
    PrefillProgress,
    Release,
    Resume,
    Shutdown,
    StepResult,
)
from .model.decoder import Model
from .ops.sampler import sample
from .sequences import Sequences
from .swap_space import SwapSpace

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
        swap_space: SwapSpace | None = None,
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
        self.swap_space = SwapSpace(kv_cache, 0) if swap_space is None else swap_space
        self._sequences = Sequences(kv_cache, self.swap_space)
        self._plans: deque[Plan] = deque()
        self._step_us: list[int] = []  # of the steps that the plan at the head has run
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
                self._sequences.add(command)
            case Plan():
                self._accept(command)
            case Release():
                for released in self._sequences.release(command.sequence_ids, command.cause):
                    self._send(released)
            case Resume():
                self._sequences.resume(command.sequence_ids)
            case Attach():
                self._forget_all()
                self._emit = command.emit
                self._send(self._kv_cache.contents())
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

    def _accept(self, plan: Plan) -> None:
        while self._plans and self._plans[0].plan_seq <= plan.revoke_through:
            self._finish_plan(revoked=True)
        self._plans.append(plan)

    def _join(self, plan: Plan) -> None:
        """When the plan begins, not when it is read: what comes back from host memory must not decode in the plans
        before, which have neither tokens nor blocks for it."""
        for sequence_id in plan.join:
            # An unknown id has ended while the plan was on its way.
            if sequence := self._sequences.get(sequence_id):
                sequence.in_decode_set = True

    def _forget_all(self) -> None:
        self._sequences.clear()
        self._plans.clear()
        self._step_us = []

    def _advance(self, plan: Plan) -> None:
        started = self._clock()
        if not self._step_us:
            self._join(plan)
        ended = self._sequences.take_untold()
        rows = self._rows(plan, ended)
        if not rows and not ended:
            self._finish_plan(revoked=False)
            return
        tokens, prefills = self._compute(rows, ended)
        if self._check_every_step:
            self._sequences.check()
        step_us = int((self._clock() - started) * 1e6)
        result = StepResult(
            plan_seq=plan.plan_seq,
            step=len(self._step_us),
            sequence_ids=tuple(tokens),
            token_ids=tuple(tokens.values()),
            prefills=tuple(prefills),
            ended=tuple(ended),
            blocks=self._kv_cache.counts(),
            step_us=step_us,
        )
        self._step_us.append(step_us)
        self._send(result)
        if len(self._step_us) >= plan.num_steps:
            self._finish_plan(revoked=False)
        # Last: whoever waits for the tokens need not wait for these.
        self._send(self._kv_cache.changes())
        log.debug("step", plan_seq=result.plan_seq, step=result.step, tokens=len(tokens), step_us=result.step_us)

    def _rows(self, plan: Plan, ended: list[Ended]) -> list[Row]:
        """What this step computes, decodes first; blocks are reserved. A sequence without room goes to `ended`."""
        wanted = [(sequence, 1) for sequence in self._sequences.decoding()]
        if not self._step_us:
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
                ended += self._sequences.fail(sequence, str(error))
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
            for row in rows:
                ended += self._sequences.fail(row.sequence, f"the step failed: {type(error).__name__}")
            return {}, []
        tokens: dict[int, int] = {}
        prefills: list[PrefillProgress] = []
        next_token = iter(chosen)
        for row in rows:
            sequence, in_prefill = row.sequence, not row.sequence.prefill_complete
            drawn = list(itertools.islice(next_token, 1 + len(sequence.forks))) if row.gets_token else []
            if drawn and min(drawn) < 0:
                # Before its blocks are published: what made the logits so must not be found by the next prompt.
                ended += self._sequences.fail(sequence, "the model's logits are not finite")
                continue
            sequence.advance(row.count)
            if in_prefill:
                progress = PrefillProgress(sequence.spec.sequence_id, sequence.num_computed, sequence.num_cached)
                prefills.append(progress)
            if not drawn:
                continue
            members = [sequence, *self._sequences.begin_forks(sequence)] if sequence.forks else [sequence]
            for member, token_id in zip(members, drawn, strict=True):
                tokens[member.spec.sequence_id] = token_id
                if reason := member.append(token_id):
                    stop_token_id = token_id if reason is EndReason.STOP else 0
                    ended.append(self._sequences.end(member, reason, stop_token_id=stop_token_id))
        return tokens, prefills

    def _forward(self, rows: list[Row]) -> list[int]:
        batch = build_batch(rows, self._device)
        logits = self._model.forward(
            batch.token_ids, batch.positions, self._kv_cache.layers, batch.attention, batch.logit_rows
        )  # [R, V]
        if logits.shape[0] == 0:
            return []
        if batch.sampled_rows is not None:
            logits = logits.index_select(0, batch.sampled_rows)
        return sample(logits, batch.sampling).tolist()

    def _finish_plan(self, *, revoked: bool) -> None:
        plan = self._plans.popleft()
        counts = self._kv_cache.counts()
        self._send(PlanDone(plan.plan_seq, len(self._step_us), revoked, counts, tuple(self._step_us)))
        self._step_us = []

    def _send(self, event: Event | None) -> None:
        if event is not None and self._emit is not None:
            self._emit(event)

    def _check_pool(self) -> None:
        try:
            self._sequences.check()
        except _core.PoolCorrupt as error:
            log.error("block_pool_broken", problem=str(error))
