"""A worker that runs nothing: it hears the commands that a replay makes, and has the reports of the record.

It knows what a worker can report after what it was told, so a report that answers nothing is found.
"""

from __future__ import annotations

from collections import Counter

from ..actions import NewSequence, Plan, Release, Rest, Resume, WorkerCommand
from ..events import Event, PlanEnded, SequenceReleased, SequenceRests, StepReported
from ..worker import Worker


class Player:
    """One stream of one worker."""

    def __init__(self, link: int, worker: Worker | None = None) -> None:
        """`worker` is what the checkpoint says of it, None if the stream is new."""
        self._link = link
        resting = {each.sequence_id for each in worker.resting} if worker else set[int]()
        self._sequences = set(worker.sequences) | resting if worker else set()
        self._swapped = set(worker.kept) - resting if worker else set()
        # Steps of each plan in flight, and the first plan that is surely one of them or younger.
        self._plans: dict[int, int] = {}
        self._oldest_seq = worker.window.oldest_seq if worker else 1
        self._first_heard: int | None = None
        self._releases: Counter[int] = Counter(self._sequences | self._swapped)
        self._rests: Counter[int] = Counter(self._sequences)
        # What was told it before the record began is not all known.
        self._joined_late = worker is not None

    def hear(self, command: WorkerCommand) -> None:
        """A command on its stream."""
        if isinstance(command, NewSequence):
            self._sequences |= {command.sequence_id, *(sequence_id for sequence_id, _ in command.forks)}
        elif isinstance(command, Plan):
            self._first_heard = self._first_heard or command.plan_seq
            self._plans[command.plan_seq] = command.num_steps
        elif isinstance(command, Release):
            self._releases.update(command.sequence_ids)
        elif isinstance(command, Rest):
            self._rests.update(command.sequence_ids)
        elif isinstance(command, Resume):
            self._swapped.difference_update(command.sequence_ids)
            self._sequences.update(command.sequence_ids)

    def report(self, event: Event) -> str | None:
        """A report of its stream; what is wrong with it, None if it answers what was heard."""
        if isinstance(event, StepReported):
            return self._step(event)
        if isinstance(event, PlanEnded):
            if not self._knows_plan(event.plan_seq, event.steps_run - 1):
                return f"link {self._link} ended plan {event.plan_seq} after {event.steps_run} steps, which it has not"
            self._plans.pop(event.plan_seq, None)
        if isinstance(event, SequenceReleased):
            return self._released(event)
        if isinstance(event, SequenceRests):
            return self._rests_now(event)
        return None

    def _step(self, event: StepReported) -> str | None:
        if not self._knows_plan(event.plan_seq, event.step):
            return f"link {self._link} reported step {event.step} of plan {event.plan_seq}, which it has not"
        named = [*event.sequence_ids, *(each.sequence_id for each in event.prefills)]
        for sequence_id in (*named, *(each.sequence_id for each in event.ended)):
            if sequence_id not in self._sequences:
                return f"link {self._link} reported of sequence {sequence_id}, which it has not"
        self._sequences.difference_update(each.sequence_id for each in event.ended)
        return None

    def _released(self, event: SequenceReleased) -> str | None:
        if not self._releases[event.sequence_id] and (event.found or not self._joined_late):
            return f"link {self._link} released sequence {event.sequence_id}, which nobody asked for"
        self._releases[event.sequence_id] -= 1
        self._sequences.discard(event.sequence_id)
        self._swapped.discard(event.sequence_id)
        if event.swapped:
            self._swapped.add(event.sequence_id)
        return None

    def _rests_now(self, event: SequenceRests) -> str | None:
        if not self._rests[event.sequence_id] and (event.found or not self._joined_late):
            return f"link {self._link} let sequence {event.sequence_id} rest, which nobody asked for"
        self._rests[event.sequence_id] -= 1
        return None

    def _knows_plan(self, plan_seq: int, step: int) -> bool:
        num_steps = self._plans.get(plan_seq)
        if num_steps is None:
            # In flight when the record began: what it holds is not known here.
            unheard = self._first_heard is None or plan_seq < self._first_heard
            return self._joined_late and unheard and plan_seq >= self._oldest_seq
        return step < num_steps
