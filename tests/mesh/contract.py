"""What a worker owes its scheduler on one stream, beside the right tokens. Watches commands as they are read."""

from __future__ import annotations

from collections import Counter

from scheduler.actions import NewSequence, Plan, Release, Rest, Resume, WorkerCommand
from scheduler.events import Event, PlanEnded, SequenceReleased, SequenceRests, StepReported, WorkerInfo


class Contract:
    """Raises AssertionError where it is broken, on either side.

    `read` what the worker reads when it reads it, `check` each thing it says, and `check_answers` before the next step.
    """

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        # Those that may get tokens, with the tokens of their prefill that are in the cache.
        self._computed: dict[int, int] = {}
        self._not_forked: set[int] = set()
        self._swapped: set[int] = set()
        self._unanswered: Counter[int] = Counter()
        self._unrested: Counter[int] = Counter()
        # Of those that were told to rest, the plan that lets each go on; 0: none so far.
        self._resting: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self._revoked_through = 0

    def read(self, command: WorkerCommand) -> None:
        """The scheduler's side."""
        if isinstance(command, NewSequence):
            forks = {sequence_id for sequence_id, _ in command.forks}
            members = {command.sequence_id} | forks
            assert members.isdisjoint(self._computed.keys() | self._swapped), "a sequence came twice"
            self._computed |= dict.fromkeys(members, 0)
            self._not_forked |= forks
            self._check_room()
        elif isinstance(command, Resume):
            assert self._swapped.issuperset(command.sequence_ids), "resumed what is not swapped"
            self._swapped.difference_update(command.sequence_ids)
            self._computed |= dict.fromkeys(command.sequence_ids, 0)
        elif isinstance(command, Rest):
            self._unrested.update(command.sequence_ids)
            self._resting |= dict.fromkeys(self._computed.keys() & set(command.sequence_ids), 0)
        elif isinstance(command, Release):
            self._unanswered.update(command.sequence_ids)
            for sequence_id in command.sequence_ids:
                self._computed.pop(sequence_id, None)
                self._resting.pop(sequence_id, None)
                self._not_forked.discard(sequence_id)
                self._swapped.discard(sequence_id)
        else:
            assert isinstance(command, Plan)
            self._steps[command.plan_seq] = 0
            for sequence_id in self._resting.keys() & set(command.join):
                self._resting[sequence_id] = self._resting[sequence_id] or command.plan_seq
            self._revoked_through = max(self._revoked_through, command.revoke_through)

    def check(self, event: Event) -> None:
        """The worker's side."""
        if isinstance(event, SequenceReleased):
            self._unanswered[event.sequence_id] -= 1
            assert self._unanswered[event.sequence_id] >= 0, "a release was answered twice"
            if event.swapped:
                self._swapped.add(event.sequence_id)
        elif isinstance(event, SequenceRests):
            self._unrested[event.sequence_id] -= 1
            assert self._unrested[event.sequence_id] >= 0, "a rest was answered twice"
            assert event.found <= (event.sequence_id in self._computed), "found what is not there"
        elif isinstance(event, PlanEnded):
            steps = self._steps.pop(event.plan_seq)
            assert event.steps_run == len(event.step_us) == steps, "a plan miscounts its steps"
        elif isinstance(event, StepReported):
            self._check_step(event)

    def check_answers(self) -> None:
        """Whether all is answered that was read."""
        assert not +self._unanswered, "a release was not answered"
        assert not +self._unrested, "a rest was not answered"

    def _check_room(self) -> None:
        # Forks that have not begun lend their slots, and those that rest have none.
        resting = {key for key, plan_seq in self._resting.items() if not plan_seq}
        assert len(self._computed.keys() - self._not_forked - resting) <= self._info.max_num_seqs, "too many sequences"

    def _check_step(self, event: StepReported) -> None:
        assert event.plan_seq > self._revoked_through, "a step of a plan that was revoked"
        assert event.step == self._steps[event.plan_seq], "the steps of a plan are out of order"
        self._steps[event.plan_seq] += 1
        got = set(event.sequence_ids)
        assert len(got) == len(event.sequence_ids), "two tokens in one step"
        assert got <= self._computed.keys(), "a token for a sequence that is not there"
        for sequence_id in got & self._resting.keys():
            assert 0 < self._resting.pop(sequence_id) <= event.plan_seq, "a token for a sequence that rests"
        prefilling = {progress.sequence_id for progress in event.prefills}
        num_tokens = 0
        for progress in event.prefills:
            before = self._computed[progress.sequence_id]
            num_tokens += progress.num_computed - max(before, progress.num_cached)
            self._computed[progress.sequence_id] = progress.num_computed
        # The first token of a fork is drawn from what its leader computed.
        num_tokens += len(got - prefilling - self._not_forked)
        self._not_forked -= got
        self._check_room()
        assert num_tokens <= self._info.max_num_batched_tokens, "too many tokens in a step"
        for ended in event.ended:
            del self._computed[ended.sequence_id]
            self._resting.pop(ended.sequence_id, None)
            self._not_forked.discard(ended.sequence_id)
