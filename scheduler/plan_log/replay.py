"""The recorded events on a fresh core: whether it decides the same.

No clock and no peers: time is what was recorded, workers are players of their reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from tercet.errors import PlanFileError

from ..actions import Action, DropWorker, Plan, ToWorker
from ..core import Core
from ..events import Event, WorkerAttached, WorkerLost
from ..sequence import Sequence
from ..worker import Worker
from .checkpoint import restore
from .plan_file import PlanFile
from .player import Player
from .round import Round, encode_command
from .shape import LOOKUP


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay stopped. `recorded` and `made` are the first commands that differ, None where there is none."""

    round: int
    now: float
    problem: str
    recorded: dict[str, Any] | None = None
    made: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay did up to its end, or to the first difference. `seconds` are those of the record."""

    rounds: int
    events: int
    plans: int
    commands: int
    seconds: float
    difference: Difference | None
    # Reports that answer nothing that was sent: how many, and the first.
    strange: int
    first_strange: Difference | None

    @property
    def equal(self) -> bool:
        """Whether all decisions were the same and all reports made sense."""
        return self.difference is None and not self.strange


class Played(NamedTuple):
    """A round that was run again. `actions` are all that the core made of it; the core is to be looked at only."""

    number: int
    round: Round
    actions: list[Action]
    core: Core


class RecordedLookup:
    """Answers placement's questions for cached prefixes from the record."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], deque[int]] = {}

    def begin(self, cached: tuple[int, ...]) -> None:
        """The answers of the next round: sequence, link and tokens of each, in order."""
        self._answers.clear()
        for index in range(0, len(cached), 3):
            self._answers.setdefault((cached[index], cached[index + 1]), deque()).append(cached[index + 2])

    def __call__(self, worker: Worker, sequence: Sequence, _dealt: Container[int]) -> int:
        """As placement.cached_tokens. What was not asked then has no answer now: 0."""
        answers = self._answers.get((sequence.sequence_id, worker.link))
        if not answers:
            return 0
        return answers.popleft() if len(answers) > 1 else answers[0]


def replay(file: PlanFile, watch: Callable[[Played], None] | None = None) -> Outcome:
    """Runs the record to its end, or to the first difference. `watch` is shown every round.

    Raises PlanFileError if the checkpoint is none.
    """
    return _Replay(file, watch).run()


class _Replay:
    def __init__(self, file: PlanFile, watch: Callable[[Played], None] | None) -> None:
        self._rounds = file.rounds
        self._watch = watch
        self._lookup = RecordedLookup()
        try:
            self._core: Core = restore(file.objects, Core, {Core.__name__: {LOOKUP: self._lookup}})
        except RecursionError:
            raise PlanFileError("the checkpoint is nested too deeply") from None
        try:
            self._core.check()
            self._players = {worker.link: Player(worker.link, worker) for worker in self._core.workers}
        except Exception as error:
            raise PlanFileError(f"the checkpoint is of no scheduler: {type(error).__name__}: {error}") from error
        self._events = self._plans = self._commands = self._strange = 0
        self._first_strange: Difference | None = None

    def run(self) -> Outcome:
        difference = None
        done = 0
        for number, each in enumerate(self._rounds, start=1):
            difference = self._round(number, each)
            if difference is not None:
                break
            done = number
        last = self._rounds[done - 1].now if done else 0.0
        return Outcome(
            rounds=done,
            events=self._events,
            plans=self._plans,
            commands=self._commands,
            seconds=last - self._rounds[0].now if done else 0.0,
            difference=difference,
            strange=self._strange,
            first_strange=self._first_strange,
        )

    def _round(self, number: int, each: Round) -> Difference | None:
        self._lookup.begin(each.cached)
        actions: list[Action] = []
        try:
            for event in each.events:
                self._judge(number, each.now, event)
                actions += self._core.apply(event, each.now)
            actions += self._core.plan(each.now)
        except Exception as error:
            return Difference(number, each.now, f"the core failed: {type(error).__name__}: {error}")
        if self._watch is not None:
            self._watch(Played(number, each, actions, self._core))
        made = [action for action in actions if isinstance(action, (ToWorker, DropWorker))]
        difference = _compare(number, each, [encode_command(action) for action in made])
        if difference is not None:
            return difference
        for action in made:
            if isinstance(action, ToWorker):
                self._plans += isinstance(action.command, Plan)
                if action.link in self._players:
                    self._players[action.link].hear(action.command)
        self._events += len(each.events)
        self._commands += len(made)
        return None

    def _judge(self, number: int, now: float, event: Event) -> None:
        """Notes a report that answers nothing."""
        if isinstance(event, WorkerAttached):
            self._players[event.link] = Player(event.link)
        elif isinstance(event, WorkerLost):
            self._players.pop(event.link, None)
        elif (link := getattr(event, "link", None)) is not None:
            player = self._players.get(link)
            problem = f"link {link} reported without a hello" if player is None else player.report(event)
            if problem is not None:
                self._strange += 1
                self._first_strange = self._first_strange or Difference(number, now, problem)


def _compare(number: int, each: Round, made: list[dict[str, Any]]) -> Difference | None:
    """The first command that is not as it was."""
    for index in range(max(len(each.commands), len(made))):
        before = each.commands[index] if index < len(each.commands) else None
        after = made[index] if index < len(made) else None
        if before != after:
            if after is None:
                problem = "a command is missing"
            elif before is None:
                problem = "a command is made that was not"
            else:
                problem = "another command is made"
            return Difference(number, each.now, problem, before, after)
    return None
