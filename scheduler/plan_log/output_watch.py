"""One output of a request that is watched: where it was, and what it got there.

Moments are seconds since the epoch; `now` is the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

from tercet.explain.story import Cause, Gap, Limit, OutputStory, Place, Step, Stretch, Wait

from ..actions import Plan
from ..lifecycle import State
from ..sequence import Sequence
from ..state import MeshState
from .held_up import held_up
from .step_watch import StepNote

_PLACES: Mapping[State, Place] = {
    State.QUEUED: Place.QUEUED,
    State.PREFILL: Place.PREFILL,
    State.DECODE: Place.DECODE,
    State.PAUSED: Place.PAUSED,
    State.PREEMPTED: Place.LEAVING,
    State.CANCELLING: Place.CANCELLING,
}
_RUNNING = frozenset({Place.PREFILL, Place.DECODE})
# Steps that are told of a gap.
_MAX_STEPS = 3


class OutputWatch:
    """Watches a sequence from `now` on, when it was in the queue; `epoch` is 0 on the clock."""

    def __init__(self, sequence: Sequence, index: int, epoch: float, now: float, cause: Cause | None) -> None:
        self.index = index
        self._epoch = epoch
        self.sequence = sequence
        self.over = False
        self._place = Place.QUEUED
        self._link: int | None = None
        self._worker = ""
        self._since = self._looked_at = epoch + now
        self._cause = cause
        self._limit: Limit | None = None
        self._limits: dict[Limit, float] = {}
        self._stretches: list[Stretch] = []
        self._first_token_at: float | None = None
        self._last_token_at: float | None = None
        # Since its last token: the steps of its worker, and whether it was decoding all the while.
        self._between: list[StepNote] = []
        self._decoding = False
        self._gap: Gap | None = None
        # Since it went to its worker: when it took part in a step last, and the tokens of its prompt in those.
        self._computed_at, self._computed = self._since, 0
        self._grammar: Wait | None = None
        self._tokens = self._chunks = self._chunk_tokens = self._again_tokens = 0
        self._plans = self._planned_steps = self._revoked = 0
        self._step_s: list[float] = []
        self._losses = 0
        self._preemptions, self._moves = sequence.preemptions, sequence.moves

    def take_step(self, step: StepNote) -> None:
        """Its worker has reported one."""
        if step.link != self.sequence.link and step.link != self._link:
            return
        chunk = step.chunks.get(self.sequence.sequence_id)
        if self._first_token_at is None and self.sequence.sequence_id in step.ids:
            self._grammar = self._wait_for_grammar(step.at - step.seconds)
        if chunk:
            self._computed_at, self._computed = step.at, self._computed + chunk
        if chunk is not None and self._first_token_at is None:
            self._chunks += 1
            self._chunk_tokens += chunk
        elif chunk is not None:
            self._again_tokens += chunk
        self._between.append(step)
        if self.sequence.sequence_id not in step.ids or self._place is Place.CANCELLING:
            return
        self._tokens += 1
        if chunk is None:
            self._step_s.append(step.seconds)
        if self._first_token_at is None:
            self._first_token_at = step.at
        if self._last_token_at is not None:
            gap_s = step.at - self._last_token_at
            if self._gap is None or gap_s > self._gap.seconds:
                self._gap = self._gap_to(step.at)
        self._last_token_at, self._between, self._decoding = step.at, [], True

    def take_plan(self, link: int, plan: Plan) -> None:
        """One was sent to a worker."""
        if link == self.sequence.link and _PLACES.get(self.sequence.state) in _RUNNING:
            self._plans += 1
            self._planned_steps += plan.num_steps

    def take_revoked(self, link: int) -> None:
        """A worker has not run a plan to its end, for a newer one."""
        self._revoked += link == self._link and self._place in _RUNNING

    def look(self, mesh: MeshState, now: float) -> None:
        """A round is over."""
        if self.over:
            return
        moment = self._epoch + now
        if self._limit is not None:
            self._limits[self._limit] = self._limits.get(self._limit, 0.0) + moment - self._looked_at
        self._looked_at = moment
        sequence = self.sequence
        if sequence.state is State.FINISHED:
            self._turn(moment)
            self.over = True
            return
        place = _PLACES[sequence.state]
        if place is not self._place or (place in _RUNNING and sequence.link != self._link):
            cause = self._cause_of(mesh, place)
            self._turn(moment)
            self._place, self._cause, self._link = place, cause, sequence.link
            if place is Place.PREFILL:
                self._computed_at, self._computed = moment, 0
            worker = None if sequence.link is None else mesh.fleet.workers.get(sequence.link)
            self._worker = "" if worker is None else worker.address
        self._decoding &= place is Place.DECODE
        self._limit = self._limit_of(mesh, now) if place is Place.QUEUED else None
        self._preemptions, self._moves = sequence.preemptions, sequence.moves

    def story(self) -> OutputStory:
        """What it was until it was looked at last."""
        stretches = self._stretches if self.over else [*self._stretches, self._stretch(self._looked_at)]
        return OutputStory(
            index=self.index,
            stretches=tuple(stretches),
            first_token_at=self._first_token_at,
            tokens=self._tokens,
            chunks=self._chunks,
            chunk_tokens=self._chunk_tokens,
            cached_tokens=self.sequence.cached_tokens,
            again_tokens=self._again_tokens,
            plans=self._plans,
            planned_steps=self._planned_steps,
            revoked=self._revoked,
            median_step_s=median(self._step_s) if self._step_s else None,
            mean_step_s=fmean(self._step_s) if self._step_s else None,
            gap=self._gap,
            preemptions=self.sequence.preemptions,
            swaps=self.sequence.swaps,
            losses=self._losses,
            moves=self.sequence.moves,
            grammar=self._grammar if self._first_token_at is not None else self._wait_for_grammar(self._looked_at),
        )

    def _wait_for_grammar(self, until: float) -> Wait | None:
        """None: it follows none, or more of its prompt had to be computed."""
        sequence = self.sequence
        left = sequence.prompt_length - sequence.cached_tokens - self._computed
        if not sequence.request.follows_grammar or left > 1 or until <= self._computed_at:
            return None
        return Wait(self._computed_at, until)

    def _cause_of(self, mesh: MeshState, place: Place) -> Cause | None:
        """Why it waits, or is to leave, from now on; notes the loss of its worker."""
        moved = self.sequence.moves > self._moves
        asked = moved or self.sequence.preemptions > self._preemptions
        lost = self._place in _RUNNING and self._link not in mesh.fleet.workers and not asked
        self._losses += lost
        if place is Place.LEAVING or (place is Place.QUEUED and asked):
            return Cause.MOVED if moved else Cause.GAVE_WAY
        if place is not Place.QUEUED:
            return None
        if self._place is Place.PAUSED:
            return Cause.READER
        return Cause.WORKER_LOST if lost else self._cause

    def _limit_of(self, mesh: MeshState, now: float) -> Limit | None:
        """None: not all of its group has come back to the queue yet."""
        leader = self.sequence.leader or self.sequence
        pool = mesh.pool_for(leader.request)
        return held_up(pool, leader, now) if leader in pool.waiting else None

    def _turn(self, moment: float) -> None:
        """Where it was it is not any more."""
        if moment > self._since:
            self._stretches.append(self._stretch(moment))
        self._since = moment
        self._limits = {}

    def _stretch(self, moment: float) -> Stretch:
        limits = tuple(sorted(self._limits.items(), key=lambda each: each[1], reverse=True))
        return Stretch(self._place, self._since, moment, self._worker, self._cause, limits)

    def _gap_to(self, moment: float) -> Gap:
        assert self._last_token_at is not None
        longest = sorted(self._between, key=lambda each: each.seconds, reverse=True)[:_MAX_STEPS]
        own = self.sequence.sequence_id
        steps = tuple(
            Step(each.at, each.seconds, each.worker, each.tokens, each.prompt_tokens, len(each.chunks),
                 each.tokens_of(own))
            for each in longest
        )  # fmt: skip
        return Gap(self._last_token_at, moment, self._decoding, steps, len(self._between))
