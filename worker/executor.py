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
from .grammars import Grammars
from .kv_cache import KVCache
from .mailbox import Mailbox
from .messages import (
    Attach,
    Command,
    Detach,
    Masked,
    NewSequence,
    Plan,
    Release,
    Rest,
    Resume,
    Shutdown,
)
from .outbox import Outbox
from .outcome import Outcome
from .pipeline import Pipeline
from .plan_queue import PlanQueue
from .reports import Reports
from .sequences import Sequences
from .step_counts import StepCounts
from .steps import Steps
from .swap_space import SwapSpace

log = structlog.get_logger()

# A worker without work for so long, in seconds, has the time to verify its pool, which takes milliseconds.
_IDLE_CHECK_S = 1.0
# So long a plan is kept that has nothing to compute for want of masks, in seconds. Its end lets the scheduler send
# another one, and tells it that the worker moves; each costs both of them a message.
HOLD_S = 0.02


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
        grammars: Grammars | None = None,
        check_every_step: bool = False,
        on_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._steps = steps
        self._kv_cache = kv_cache
        self._check_every_step = check_every_step
        self._on_death = on_death
        self._mailbox = Mailbox()
        self._stopped = False
        self.swap_space = SwapSpace(kv_cache, 0) if swap_space is None else swap_space
        self._grammars = grammars
        if grammars is not None:
            grammars.on_late = lambda: self.submit(Masked())
        self._sequences = Sequences(kv_cache, self.swap_space, grammars)
        self._plans = PlanQueue()
        self._works = Pipeline(steps, kv_cache, self._sequences, self._plans)
        # Waits in the mailbox until what comes before is told, while what it leads to is on its way.
        self._announced: Command | None = None
        self._may_grow = False  # the run, since plans came that only go on
        self._has_returned = False  # a sequence from host memory, which the run does not have
        # Until when the plan at the head is kept, by the clock, for masks without which it has nothing to compute.
        self._held_until: float | None = None
        # Of the thread: whether it waits for commands, and how often it has waited or come to the end of a step.
        self._waits = True
        self._num_turns = 0
        self._clock = clock
        self._outbox = Outbox()
        # What it has done; to be looked at from any thread.
        self.counts = StepCounts(blocks=kv_cache.counts())
        self._reports = Reports(self._outbox, self._plans, self._sequences, kv_cache, self._works, self.counts, clock)
        self._thread = threading.Thread(target=self._live, name="executor", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def num_turns(self) -> int:
        """A number that grows while the device comes back from its steps. May be read from any thread, as `busy`."""
        return self._num_turns

    @property
    def busy(self) -> bool:
        """Whether `num_turns` is to grow: there is something to compute or to obey."""
        return not self._waits

    @property
    def num_sequences(self) -> int:
        """Sequences the worker has. May be read from any thread."""
        return len(self._sequences)

    @property
    def num_commands(self) -> int:
        """Commands that were submitted and not yet obeyed. May be read from any thread."""
        return len(self._mailbox)

    @property
    def idle(self) -> bool:
        """Whether there is no sequence, no plan and no command left to obey. May be read from any thread."""
        return not (len(self._mailbox) or self._plans or self.num_sequences)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the thread after the step that runs now, and waits for it at most `timeout_s` seconds; whether it has
        ended."""
        self.submit(Shutdown())
        self._thread.join(timeout_s)
        return not self.alive

    def submit(self, command: Command) -> None:
        """Hands over a command; it takes effect at the next step boundary. Commands keep their order."""
        self._mailbox.put(command)
        if isinstance(command, NewSequence):
            return  # nothing comes of it before its plan
        if not isinstance(command, Plan) or command.revoke_through:
            # A guess: what it disturbs is known to the executor's thread alone. A run that ends in vain begins again.
            self._steps.stop()
        self._steps.wake()

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
        if (device := self._kv_cache.blocks.device).type == "cuda":
            # Of the thread: else events, streams and captured steps would be of the first GPU.
            torch.cuda.set_device(device)
        try:
            while not self._stopped:
                if not self._works and (self._held_until is not None or not self._plans):
                    self._wait()
                self._obey_all()
                self._step()
            self._outbox.flush()
        except Exception:
            # State that a bug has touched is not to be computed with.
            log.exception("executor_died")
            self._on_death()
        finally:
            self._steps.close()
            if self._grammars is not None:
                self._grammars.close()

    def _wait(self) -> None:
        self._outbox.flush()
        self._waits = True
        self.counts.begin_wait(self._clock(), starves=any(self._sequences.decoding()))
        if self._held_until is not None:
            self._mailbox.wait(max(0.0, self._held_until - self._clock()))
        elif not self._mailbox.wait(_IDLE_CHECK_S):
            self._check_pool()
            self._mailbox.wait(None)
        self.counts.end_wait(self._clock())
        self._num_turns += 1
        self._waits = False

    def _obey_all(self) -> None:
        while not self._stopped and (command := self._mailbox.first()) is not None:
            if command is self._announced:
                if len(self._works) > 1:
                    return
                self._announced = None
            elif self._works and self._disturbs(command):
                if self._announce(command):
                    return
                self._end_works()
            self._obey(command)
            self._mailbox.take()

    @torch.inference_mode()
    def _announce(self, command: Command) -> bool:
        """Begins what a command leads to behind what is being computed: the first step of a plan that comes instead of
        all others, or a run of those that are neither released nor to rest."""
        match command:
            case Plan():
                begun = self._plans.are_revoked_by(command) and self._works.follow(command, command.num_steps)
            case Release() | Rest():
                begun = self._works.run is not None and self._works.go_on(command.sequence_ids)
            case _:
                begun = False
        if begun:
            self._announced = command
        return begun

    def _disturbs(self, command: Command) -> bool:
        """Whether what is computed must end before a command is obeyed."""
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
                self._reports.answers(self._sequences.release(command.sequence_ids, command.cause))
            case Rest():
                self._plans.leave_out(command.sequence_ids)
                self._reports.answers(self._sequences.rest(command.sequence_ids))
            case Resume():
                self._sequences.resume(command.sequence_ids)
            case Attach():
                self._forget_all()
                self._outbox.open(command.emit)
                command.obeyed()
                self._outbox.put(self._kv_cache.contents())
            case Detach():
                if self._outbox.is_for(command.emit):
                    self._forget_all()
                    self._outbox.close()
            case Masked():
                pass  # it was put to be read
            case Shutdown():
                self._forget_all()
                self._stopped = True

    def _accept(self, plan: Plan) -> None:
        while self._plans.is_revoked_by(plan):
            self._reports.plan_done(revoked=True)
        self._plans.append(plan)
        self._may_grow |= plan.goes_on

    def _forget_all(self) -> None:
        self._sequences.clear()
        self._plans.clear()

    @torch.inference_mode()
    def _step(self) -> None:
        if self._announced is not None and len(self._works) == 1:
            return  # it is to be obeyed first
        self._welcome()
        if self._works:
            self._look_ahead()
        elif not self._begin():
            return
        self._outbox.flush()
        # Woken by what is obeyed already, it waits on.
        while not self._steps.wait():
            if len(self._mailbox):
                return
        head = self._works.head
        outcome = head.next()
        if outcome is not None:
            self._report(outcome)
        if outcome is None or head.over:
            self._end_head()
        self._reports.cache_changes()

    def _welcome(self) -> None:
        """Lets sequences whose blocks are back take part in steps: the run goes on with them."""
        if self._sequences.num_returning:
            self._has_returned |= self._sequences.welcome()
        if self._has_returned and self._works.run is not None:
            self._has_returned = False
            if self._works.go_on():
                self._look_at_mailbox()
            else:
                self._steps.stop()

    def _begin(self) -> bool:
        """Begins the step at the head of the plans; False if there is none to wait for."""
        held_until, self._held_until = self._held_until, None
        if not self._plans:
            return False
        self._reports.begin_step()
        self._has_returned = False
        is_masking = self._sequences.num_masked > 0 and self._sequences.settle_masks()
        begun = self._works.begin()
        if not begun and self._sequences.num_returning and self._sequences.welcome(wait=True):
            begun = self._works.begin()
        if begun:
            self._look_at_mailbox()
            self._look_ahead()
            return True
        if self._sequences.has_untold:
            self._report(Outcome())
            self._reports.cache_changes()
        elif is_masking:
            self._hold(held_until)
        else:
            self._reports.plan_done(revoked=False)
        return False

    def _hold(self, until: float | None) -> None:
        """Keeps the plan at the head, which waits for masks alone, until that time; None: it begins to wait now. Then,
        or as soon as one behind it has something to compute, ends it."""
        now = self._clock()
        until = now + HOLD_S if until is None else until
        if now < until and not self._works.has_work_behind:
            self._held_until = until
            return
        head = self._plans.head
        # A step, if one of nothing: whose plans run none is taken to be broken.
        self._report(Outcome(step_us=0))
        if self._plans and self._plans.head is head:
            # Its first step has gone, and with it what it had of prompts: the next plan has that again.
            self._reports.plan_done(revoked=False)
        self._reports.cache_changes()

    def _look_ahead(self) -> None:
        if self._announced is None and self._plans:
            if self._works.look_ahead(may_grow=self._may_grow):
                self._look_at_mailbox()
            self._may_grow &= len(self._works) > 1

    def _look_at_mailbox(self) -> None:
        # What was submitted before a run began found none to stop.
        if len(self._mailbox):
            self._steps.stop()

    def _end_works(self) -> None:
        """Stops what is computed, if anything is, and reports it.

        What is told leaves with the next step: that of who stopped it should not wait for others' news.
        """
        while self._works:
            self._end_head()
        self._reports.cache_changes()

    def _end_head(self) -> None:
        if len(self._works) == 1:
            self._steps.stop()
        while (outcome := self._works.head.next()) is not None:
            self._report(outcome)
        self._works.end_head()

    def _report(self, outcome: Outcome) -> None:
        self._num_turns += 1
        if self._check_every_step:
            self._sequences.check()
        self._reports.step(outcome)

    def _check_pool(self) -> None:
        try:
            self._sequences.check()
        except _core.PoolCorrupt as error:
            self.counts.num_broken += 1
            log.error("block_pool_broken", problem=str(error))
