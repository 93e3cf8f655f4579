"""A pool: all workers of one model and revision, and what waits for them.

Holds state and answers questions about it; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .actions import PoolState
from .fair_order import FairOrder
from .lifecycle import State
from .progress import Foreseen, Silence
from .sequence import Sequence
from .waiting import WaitingQueue
from .worker import Worker

# What is owed to a tenant at most that has asked for less than the others got, in the largest steps of all workers:
# some prompts that come at once. Or in steps in which every slot generates, if that is less: outputs are charged, too,
# and where slots are few they would take the others' turns for minutes.
OWED_STEPS = 2
OWED_DECODE_STEPS = 64


@dataclass(slots=True, eq=False)
class Pool:
    """The live workers of one model and revision, and what waits for one of them."""

    model: str
    model_revision: str
    workers: dict[int, Worker] = field(default_factory=dict)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    # Of what waits, by id: since when no worker is there that may have it, in seconds on the scheduler's clock.
    # The longest first.
    stranded: dict[int, float] = field(default_factory=dict)
    # Those in state PAUSED that are on no worker, by id.
    paused: dict[int, Sequence] = field(default_factory=dict)

    @property
    def live(self) -> list[Worker]:
        """Those that are not about to stop."""
        return [worker for worker in self.workers.values() if not worker.draining]

    @property
    def state(self) -> PoolState:
        live = self.live
        return PoolState(
            model=self.model,
            model_revision=self.model_revision,
            workers_live=len(live),
            max_model_len=max((worker.info.max_model_len for worker in live), default=0),
            max_sequence_len=max((worker.max_sequence_len for worker in live), default=0),
        )

    def silence_of(self, worker: Worker, now: float) -> Silence:
        """As of Worker.silence; where its own steps were too few or too small to tell by, what the slowest of the other
        workers of its kind would take for that step stands in."""
        silence = worker.silence(now)
        if not silence.seconds or silence.foreseen is Foreseen.BY_ITSELF:
            return silence
        tokens, context = worker.largest_step, worker.context_tokens
        others = [each for each in self.workers.values() if each is not worker and each.kind == worker.kind]
        known = [each.longest_seconds(tokens, context) or 0.0 for each in others if each.step_times.knows(tokens)]
        if not known:
            return silence
        return replace(silence, step_s=max(*known, silence.step_s or 0.0), foreseen=Foreseen.BY_OTHERS)

    def can_ever_take(self, sequence: Sequence) -> bool:
        """Whether a worker that is not about to stop could run it."""
        return any(worker.can_ever_take(sequence) for worker in self.live)

    def may_go(self, worker: Worker, sequence: Sequence) -> bool:
        """Whether a waiting sequence may go to that worker at all. One that is about to stop takes back what it had,
        if no other can run it: so it runs on for the grace there, whoever has to give way."""
        if sequence.kept_on is not None:
            return sequence.kept_on == worker.link
        if worker.draining:
            return sequence.last_link == worker.link and not self.can_ever_take(sequence)
        return worker.can_ever_take(sequence)

    def has_place(self, sequence: Sequence) -> bool:
        """Whether there is a worker that it may go to."""
        return any(self.may_go(worker, sequence) for worker in self.workers.values())

    @property
    def crowded(self) -> bool:
        """Whether somebody waits for a worker that is there."""
        return len(self.waiting) > len(self.stranded)

    def order(self, now: float, free_slots: int) -> FairOrder:
        """Those that wait for a worker that is there, in the order of service."""
        return FairOrder(self.waiting, now, self.stranded, scarce=self.waiting.num_promised >= free_slots)

    def let_go(self, worker: Worker, sequence: Sequence) -> None:
        """A sequence has left its worker; what it got there is charged."""
        worker.let_go(sequence)
        self.waiting.settle(sequence)

    def take_back(self, sequence: Sequence, now: float) -> None:
        """Takes a sequence off its worker and puts it in its place in the queue, unless its reader is behind; a group
        when the last of it is off."""
        sequence.requeue()
        leader = sequence.leader or sequence
        if not all(each.link is None for each in leader.group):
            return
        if leader.pausable:
            self.set_aside(leader)
        else:
            self.queue(leader, now)

    def set_aside(self, sequence: Sequence) -> None:
        """One that is on no worker, and not in the queue, waits for its reader."""
        sequence.become(State.PAUSED)
        self.paused[sequence.sequence_id] = sequence

    def go_on(self, sequence: Sequence, now: float) -> None:
        """One that was set aside takes its place in the queue again."""
        del self.paused[sequence.sequence_id]
        sequence.become(State.QUEUED)
        self.queue(sequence, now)

    def queue(self, sequence: Sequence, now: float) -> int:
        """It waits for a worker, whether there is one for it or not. Returns how many go before it."""
        position = self.waiting.add(sequence)
        self._note_place(sequence, now)
        return position

    def leave_queue(self, sequence: Sequence) -> None:
        """Takes out one that waits and is not going to a worker."""
        self.waiting.remove(sequence)
        self.stranded.pop(sequence.sequence_id, None)

    def note_size(self) -> None:
        """Workers came or went: what is owed to a tenant at most depends on what they do."""
        limits = [worker.limits for worker in self.workers.values()]
        owed = sum(
            min(OWED_STEPS * each.max_num_batched_tokens, OWED_DECODE_STEPS * each.max_running) for each in limits
        )
        self.waiting.set_owed(float(owed))

    def rouse(self, worker: Worker, sequence: Sequence) -> None:
        """One that rests on a worker has to leave it, wherever it waits for that."""
        if self.paused.pop(sequence.sequence_id, None) is None:
            self.leave_queue(sequence)
        worker.rouse(sequence)

    def note_places(self, now: float) -> None:
        """A worker came, went, or began to stop: for whom is there one now?"""
        for sequence in self.waiting:
            self._note_place(sequence, now)

    def _note_place(self, sequence: Sequence, now: float) -> None:
        if self.has_place(sequence):
            self.stranded.pop(sequence.sequence_id, None)
        else:
            self.stranded.setdefault(sequence.sequence_id, now)
