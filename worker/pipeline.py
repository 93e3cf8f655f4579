"""The works that a device was given for the plans, in the order in which it computes them. Knows no commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from . import _core
from .kv_cache import KVCache
from .messages import Plan
from .mixed_step import MixedStep, missing_chunks
from .ops.follow import NONE
from .plan_queue import PlanQueue
from .run import Run
from .sequence import Sequence
from .sequences import Sequences
from .steps import Row, Steps, next_row
from .work import Work

# What is computed, a run that was begun behind it and has come as far as its first step, and who came after that.
_MOST = 3


class Pipeline:
    """True while there are works. The next outcome is that of the head, which must be there to be asked for.

    Whoever begins a work behind others builds on what they will leave: where their sequences stand by then is known,
    their last tokens only to the device, and so is who ended with a stop id and is an empty row from then on.
    """

    def __init__(self, steps: Steps, kv_cache: KVCache, sequences: Sequences, plans: PlanQueue) -> None:
        self._steps = steps
        self._kv_cache = kv_cache
        self._sequences = sequences
        self._plans = plans
        self._works: deque[Work] = deque()

    def __len__(self) -> int:
        return len(self._works)

    @property
    def head(self) -> Work:
        """What is computed now."""
        return self._works[0]

    @property
    def run(self) -> Run | None:
        """The head, if it is a run with nothing behind it."""
        head = self._works[0] if len(self._works) == 1 else None
        return head if isinstance(head, Run) else None

    @property
    def num_ahead(self) -> int:
        """Blocks that are reserved and hold nothing yet.

        Who spends blocks by what is reported of them need not know of these: they are no more than what was given leave
        to take.
        """
        size = self._kv_cache.pool.block_size
        return sum(each.table.num_blocks - -(-each.num_computed // size) for each in self._on_their_way())

    @property
    def has_work_behind(self) -> bool:
        """Where nothing is computed, and the plan at the head has nothing: whether one behind it has."""
        return any(self._has_work(plan) for plan in self._plans.later)

    def begin(self) -> bool:
        """Where nothing is computed: begins the step at the head of the plans, and in a run those behind it. False if
        there is nothing to compute."""
        plan, num_steps = self._plans.head if self._plans.step == 0 else None, self._plans.num_steps_alike
        rows, chunks = self._rows(plan, {})
        if not (rows or chunks):
            return False
        work: Work | None = None
        if not chunks and not any(row.sequence.needs_host for row in rows):
            work = self._make_run(rows, num_steps)
        if work is None:
            work = MixedStep(self._steps, self._kv_cache, self._sequences, [*rows, *chunks], alone=True)
        begun = work.begin()
        assert begun, "there is nothing to wait for"
        self._works.append(work)
        return True

    def look_ahead(self, *, may_grow: bool) -> bool:
        """Begins what the plans have behind the step that is computed. If a run is, makes it as long as they are by
        now, if `may_grow`. Whether something was begun."""
        if len(self._works) > 1:
            return False
        run, num_steps = self.run, self._plans.num_steps_alike
        if run is not None:
            if may_grow and num_steps > run.num_left:
                run.extend(num_steps - run.num_left)
            return False
        if num_steps > 1:
            return self.go_on()
        behind = self._plans.behind
        return behind is not None and self.follow(*behind)

    def follow(self, plan: Plan, num_steps: int) -> bool:
        """Behind what is computed, which ends with the steps that are on their way, begins the first step of `plan`,
        and up to `num_steps` if it computes no prompt. False if that has to be waited for; then what is computed may
        have been ended early, and who begins in `plan` may have its blocks."""
        return self._follow(plan, num_steps, ())

    def go_on(self, without: Collection[int] = ()) -> bool:
        """The same with all that decodes but some ids, to the end of the plans that only go on."""
        return self._follow(None, self._plans.num_steps_alike, without)

    def _follow(self, plan: Plan | None, num_steps: int, without: Collection[int]) -> bool:
        last = self._works[-1]
        if len(self._works) == _MOST or not last.can_be_followed:
            return False
        num_steps_to_come = self._steps.settle()
        if num_steps_to_come is None:
            return False
        if plan is None:
            num_steps -= num_steps_to_come
        else:
            self._sequences.join(plan.join)
        places = last.after(num_steps_to_come)
        if places is None or num_steps < 1:
            return False
        rows, chunks = self._rows(plan, {row.sequence: row for row in places})
        rows = [row for row in rows if row.sequence.spec.sequence_id not in without]
        if not (rows or chunks):
            return False
        if not chunks and any(row.sequence.needs_host for row in rows):
            return False  # one that has only to be joined: what the device goes on with by itself it cannot be part of
        work = self._make_run(rows, num_steps) if not chunks else self._make_step([*rows, *chunks])
        if work is None or not work.begin():
            return False
        self._works.append(work)
        return True

    def end_head(self) -> None:
        """The head has no further outcome."""
        head = self._works.popleft()
        head.close(self._on_their_way())

    def _has_work(self, plan: Plan) -> bool:
        joined = (self._sequences.get(each) for each in plan.join)
        return any(each is not None and each.prefill_complete and each.may_draw for each in joined) or bool(
            missing_chunks(self._sequences, plan.chunks, {})
        )

    def _rows(self, plan: Plan | None, places: dict[Sequence, Row]) -> tuple[list[Row], list[Row]]:
        """Who decodes in the next step, those that follow first, and what it computes of prompts. `places` as in
        `missing_chunks`."""
        chunks: list[Row] = []
        if plan is not None:
            # Not when it is read: for what comes back from host memory the plans before have neither tokens nor blocks.
            self._sequences.join(plan.join)
            chunks = missing_chunks(self._sequences, plan.chunks, places)
        on_their_way = self._on_their_way()
        rows = sorted((row for row in places.values() if row.count), key=lambda row: row.follows == NONE)
        rows += (next_row(each) for each in self._sequences.decoding() if each not in on_their_way)
        return rows, chunks

    def _make_run(self, rows: list[Row], num_steps: int) -> Run | None:
        try:
            return Run(self._steps, self._kv_cache, self._sequences, rows, num_steps)
        except _core.OutOfBlocks:
            return None

    def _make_step(self, rows: list[Row]) -> MixedStep | None:
        try:
            return MixedStep(self._steps, self._kv_cache, self._sequences, rows, alone=False)
        except _core.OutOfBlocks:
            return None

    def _on_their_way(self) -> set[Sequence]:
        return {sequence for work in self._works for sequence in work.live}
