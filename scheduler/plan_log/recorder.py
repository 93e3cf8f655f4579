"""The flight recorder: what happened to the core of late, and the commands that followed, bounded in rounds and memory.

It costs the loop microseconds a round: what cannot change is kept as it is and written out only for a dump. Tokens are
not kept, neither those of prompts nor those generated.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Container, Iterator
from collections.abc import Sequence as SequenceOf
from typing import Any

import structlog

from tercet.errors import EngineFaultError, InvalidFieldError

from ..actions import Action, DropWorker, NewSequence, Refused, ToGateway, ToWorker
from ..core import Core
from ..core_settings import CoreSettings
from ..events import (
    CancelReceived,
    Event,
    GatewayAttached,
    GatewayLost,
    PauseReceived,
    PlanEnded,
    SequenceReleased,
    SequenceRests,
    StepReported,
    Submitted,
    TimePassed,
    UnpauseReceived,
    WorkerAttached,
    WorkerLost,
)
from ..placement import cached_tokens
from ..sequence import Sequence
from ..worker import Worker
from .checkpoint import Snapshot
from .checkpoint_moment import CheckpointMoment
from .plan_file import write_plan_file
from .round import OUTSIDE, KeptRound, KeptStep
from .values import Copied, encode, kept

# Values that a round may hold on average: sequence ids, chunks, joins and the like. Rounds that hold more are fewer.
VALUES_PER_ROUND = 128
# Rounds that are freed with each that is added.
FREED_PER_ROUND = 16

# They have no tokens, and never change.
_KEPT_AS_THEY_ARE = frozenset(
    {
        CancelReceived,
        GatewayAttached,
        GatewayLost,
        PauseReceived,
        PlanEnded,
        SequenceReleased,
        SequenceRests,
        TimePassed,
        UnpauseReceived,
        WorkerAttached,
    }
)
_COMMANDS = frozenset({ToWorker, DropWorker})


class NotedLookup:
    """What placement asks of prefix caches, and what it was told. A replay has no tokens to find it out again."""

    def __init__(self) -> None:
        self._answers: list[int] = []

    def __call__(self, worker: Worker, sequence: Sequence, dealt: Container[int]) -> int:
        """As cached_tokens."""
        tokens = cached_tokens(worker, sequence, dealt)
        self._answers += (sequence.sequence_id, worker.link, tokens)
        return tokens

    def take(self) -> tuple[int, ...]:
        """Sequence, link and tokens of each answer since the last call."""
        answers = tuple(self._answers)
        self._answers.clear()
        return answers


def recorded_core(settings: CoreSettings, max_rounds: int) -> tuple[Core, Recorder | None]:
    """A new core, and the recorder that its loop feeds; None if no round is to be kept."""
    if not max_rounds:
        return Core(settings), None
    lookup = NotedLookup()
    core = Core(settings, lookup)
    return core, Recorder(core, lookup, max_rounds)


class Segment:
    """Rounds that follow each other, and the state before the first."""

    def __init__(self, start: Snapshot) -> None:
        self.start = start
        self.rounds: list[KeptRound] = []
        self.num_values = 0
        self.moment = CheckpointMoment()


class Recorder:
    """Keeps at most `max_rounds` rounds, fewer if they hold much, and at least a quarter of what it may keep.

    Segments of them follow each other, so that what is left can be replayed when the oldest one goes: each starts from
    a checkpoint. The loop stands still for one, the longer the more sequences live, and so a segment ends early, or
    late, to have the next one start with few.
    """

    def __init__(self, core: Core, lookup: NotedLookup, max_rounds: int) -> None:
        """`lookup` is what the core asks."""
        self._core = core
        self._lookup = lookup
        self._max_rounds = max_rounds
        self._max_values = max_rounds * VALUES_PER_ROUND
        self._last_ids: dict[int, tuple[tuple[int, ...], array[int]]] = {}
        self._segments = deque([Segment(Snapshot(core))])
        self._num_rounds = self._num_values = 0
        # Values of sequence ids that the round being kept shares with none before it.
        self._unshared = 0
        # Rounds that are kept no more and still have to be freed.
        self._gone: list[KeptRound] = []
        # Why it records no more.
        self.problem: str | None = None

    def note(self, now: float, events: SequenceOf[Event], actions: SequenceOf[Action]) -> None:
        """A round is over: `events` were applied at `now`, a plan was made, and `actions` came out, in order."""
        cached = self._lookup.take()
        if self.problem is not None:
            return
        try:
            round_kept = KeptRound(
                now,
                tuple([each if type(each) in _KEPT_AS_THEY_ARE else self._keep(each) for each in events]),
                cached,
                tuple([_keep_command(each) for each in actions if type(each) in _COMMANDS]),
            )
            outside = _outside(actions)
            self._add(_marked(round_kept, outside) if outside else round_kept)
        except Exception as error:
            # A bug, but none of serving.
            self.problem = f"the plan log stopped: {type(error).__name__}: {error}"
            self._segments.clear()
            self._gone.clear()
            structlog.get_logger().error("plan_log_stopped", problem=self.problem, exc_info=error)

    def dump(self, now: float, written_at: float) -> Iterator[bytes]:
        """The file, in parts: all rounds kept at this moment, which is `now` on the scheduler's clock and
        `written_at` in seconds since 1970. What is recorded meanwhile is not in it.

        Each part takes a millisecond or two to make. Raises EngineFaultError if recording has failed.
        """
        if self.problem is not None:
            raise EngineFaultError(self.problem)
        rounds = [kept for segment in self._segments for kept in segment.rounds]
        return write_plan_file(self._segments[0].start, rounds, now, written_at)

    def _add(self, kept: KeptRound) -> None:
        segment = self._segments[-1]
        segment.rounds.append(kept)
        num_values = self._unshared + kept.num_values
        self._unshared = 0
        segment.num_values += num_values
        self._num_rounds += 1
        self._num_values += num_values
        del self._gone[-FREED_PER_ROUND:]
        while len(self._segments) > 1 and self._share(self._num_rounds, self._num_values) > 1.0:
            oldest = self._segments.popleft()
            self._num_rounds -= len(oldest.rounds)
            self._num_values -= oldest.num_values
            # To free thousands of them at once takes long, too.
            self._gone += oldest.rounds
        if segment.moment.has_come(self._share(len(segment.rounds), segment.num_values), self._core.num_sequences):
            self._segments.append(Segment(Snapshot(self._core)))

    def _share(self, num_rounds: int, num_values: int) -> float:
        """Of what may be kept."""
        return max(num_rounds / self._max_rounds, num_values / self._max_values)

    def _keep(self, event: Event) -> Any:
        """What stands for an event that may have tokens, or is rare."""
        if type(event) is StepReported:
            ids = event.sequence_ids
            last = self._last_ids.get(event.link)
            if last is None or last[0] != ids:
                last = self._last_ids[event.link] = (ids, array("Q", ids))
                self._unshared += len(ids)
            # The stop token of an end is a token, too.
            ended = tuple(map(kept, event.ended)) if event.ended else ()
            return KeptStep(
                event.link, event.plan_seq, event.step, last[1], event.prefills, ended, event.blocks, event.step_us
            )
        if type(event) is WorkerLost:
            self._last_ids.pop(event.link, None)
            return event
        return kept(event)


def _keep_command(action: Any) -> Any:
    if type(action) is ToWorker and type(action.command) is NewSequence:
        return ToWorker(action.link, kept(action.command))
    return action


def _outside(actions: SequenceOf[Action]) -> set[tuple[int, int]]:
    """Gateway and key of requests that were refused for a token outside the vocabulary: the one refusal that hangs on
    more of a prompt than its length."""
    return {
        (action.gateway, action.message.request_key)
        for action in actions
        if type(action) is ToGateway
        and type(action.message) is Refused
        and type(action.message.failure) is InvalidFieldError
        and action.message.failure.metadata.get("field") == "prompt_token_ids"
    }


def _marked(round_kept: KeptRound, outside: set[tuple[int, int]]) -> KeptRound:
    """Notes that a prompt had such a token. An empty prompt is refused for the same field, and has none."""
    events = list(round_kept.events)
    for index, event in enumerate(events):
        if type(event) is Copied and event.shape.cls is Submitted:
            data = encode(event)
            submission = data["submission"]
            if (data["gateway"], submission["request_key"]) in outside and submission["prompt_token_ids"]["zeros"]:
                events[index] = {**data, OUTSIDE: True}
    return round_kept._replace(events=tuple(events))
