"""One round of the core: the events that it was given at once, and the commands to workers that followed.

Kept without tokens; written as one line of JSON data, read back for a replay.
"""

from __future__ import annotations

from array import array
from dataclasses import fields, replace
from typing import Any, NamedTuple, get_args

from tercet.errors import PlanFileError

from ..actions import DropWorker, Plan, ToWorker
from ..events import BlockCounts, Event, PrefillProgress, StepReported, Submitted, TenantsChanged
from ..tenant import NamedPlan
from .conform import conforms
from .values import MAX_ID, Copied, decode, encode, whole_number

# Marks a submission that was refused for a token outside the vocabulary.
OUTSIDE = "outside_vocabulary"
_OUTSIDE_TOKEN = 2**32 - 1
# Far in the future, and a date that can still be shown.
_MAX_SECONDS = 6e10
# What a round counts beside its lists.
_ROUND_VALUES = 8
_PLAN_VALUES = len(fields(NamedPlan))
_COPIES = frozenset({Copied, dict})


# Fields of a step that are not kept, or not in their place.
_NOT_KEPT: dict[str, list[Any]] = {"sequence_ids": [], "token_ids": [], "logprobs": [], "prompt_logprobs": []}

# Sequence ids of a step that was read, and the zeros in the place of its tokens.
StepIds = tuple[tuple[int, ...], tuple[int, ...]]


class KeptStep(NamedTuple):
    """A StepReported without tokens and logprobs. Consecutive ones of a worker share `sequence_ids` while those do not
    change."""

    link: int
    plan_seq: int
    step: int
    sequence_ids: array[int]
    prefills: tuple[PrefillProgress, ...]
    # Kept as `values.kept` does.
    ended: tuple[Any, ...]
    blocks: BlockCounts
    step_us: int


class KeptRound(NamedTuple):
    """A round in memory. An event or command is as the core saw it, or a copy (values.py) if that had tokens."""

    # Seconds on the scheduler's clock.
    now: float
    events: tuple[Any, ...]
    # (sequence_id, link, tokens) of each question for a cached prefix, in order, in one tuple.
    cached: tuple[int, ...]
    commands: tuple[ToWorker | DropWorker, ...]

    @property
    def num_values(self) -> int:
        """About how many numbers it keeps in memory, besides sequence ids of steps."""
        values = _ROUND_VALUES * (1 + len(self.events) + len(self.commands)) + len(self.cached)
        for event in self.events:
            if type(event) is KeptStep:
                values += 2 * len(event.prefills) + _ROUND_VALUES * len(event.ended)
            elif type(event) is TenantsChanged:
                values += _PLAN_VALUES * len(event.plans)
            elif type(event) in _COPIES:
                values += 2 * _ROUND_VALUES
        for each in self.commands:
            if type(each) is ToWorker:
                command = each.command
                values += 2 * len(command.chunks) + len(command.join) if type(command) is Plan else _ROUND_VALUES
        return values


class Round(NamedTuple):
    """A round as it is read. `commands` stay JSON data: what a replay makes is compared in that form."""

    now: float
    events: tuple[Event, ...]
    cached: tuple[int, ...]
    commands: list[dict[str, Any]]


def encode_round(kept: KeptRound, last_ids: dict[int, array[int]]) -> dict[str, Any]:
    """JSON data. `last_ids` are the sequence ids of each link's last step written; it is kept up to date."""
    events = [_encode_step(each, last_ids) if type(each) is KeptStep else encode(each) for each in kept.events]
    data: dict[str, Any] = {"now": kept.now, "events": events}
    if kept.cached:
        data["cached"] = list(kept.cached)
    if kept.commands:
        data["commands"] = [encode_command(each) for each in kept.commands]
    return data


def encode_command(action: ToWorker | DropWorker) -> dict[str, Any]:
    """JSON data of a command and where it goes."""
    if isinstance(action, ToWorker):
        return {"link": action.link, **encode(action.command)}
    data: dict[str, Any] = encode(action)
    return data


def _encode_step(step: KeptStep, last_ids: dict[int, array[int]]) -> dict[str, Any]:
    data = {
        "is": StepReported.__name__,
        **{name: encode(value) for name, value in zip(step._fields, step, strict=True)},
    }
    if last_ids.get(step.link) is step.sequence_ids:
        # As in the step before.
        del data["sequence_ids"]
    last_ids[step.link] = step.sequence_ids
    return data


def decode_round(data: Any, last_ids: dict[int, StepIds]) -> Round:
    """The opposite. Raises PlanFileError."""
    if not isinstance(data, dict) or not {"now", "events"} <= data.keys() <= {"now", "events", "cached", "commands"}:
        raise PlanFileError("this is no round")
    now, events, cached, commands = data["now"], data["events"], data.get("cached", []), data.get("commands", [])
    if not isinstance(events, list) or not isinstance(commands, list):
        raise PlanFileError("a round has lists of events and commands")
    if not isinstance(cached, list) or len(cached) % 3:
        raise PlanFileError("cached is a sequence id, a link and a count of tokens, each time")
    for command in commands:
        if not isinstance(command, dict) or not {"is", "link"} <= command.keys():
            raise PlanFileError("a command has a name and a link")
    return Round(
        seconds(now),
        tuple(_decode_event(each, last_ids) for each in events),
        tuple(whole_number(each, MAX_ID) for each in cached),
        commands,
    )


def seconds(value: Any) -> float:
    """A moment on a clock. Raises PlanFileError if it is none."""
    if type(value) not in (int, float) or not 0 <= value <= _MAX_SECONDS:
        raise PlanFileError(f"{str(value)[:80]} is no time in seconds")
    return float(value)


def _decode_event(data: Any, last_ids: dict[int, StepIds]) -> Event:
    if not isinstance(data, dict) or str(data.get("is")) not in _EVENTS:
        raise PlanFileError(f"{str(data)[:80]} is no event")
    data = dict(data)
    if data["is"] == StepReported.__name__:
        return _decode_step(data, last_ids)
    outside = data.pop(OUTSIDE, False)
    event: Event = _conforming(decode(data))
    if outside and isinstance(event, Submitted):
        prompt = (*event.submission.prompt_token_ids[1:], _OUTSIDE_TOKEN)
        event = replace(event, submission=replace(event.submission, prompt_token_ids=prompt))
    return event


def _decode_step(data: dict[str, Any], last_ids: dict[int, StepIds]) -> Event:
    """Steps that name no sequences share the ids of the one before, however many they are."""
    link = whole_number(data.get("link"), MAX_ID)
    if "sequence_ids" in data:
        sequence_ids = decode(data["sequence_ids"])
        if not conforms(sequence_ids, tuple[int, ...]):
            raise PlanFileError("sequence_ids of a step are no ids")
        last_ids[link] = sequence_ids, (0,) * len(sequence_ids)
    ids = last_ids.get(link)
    if ids is None:
        raise PlanFileError("the first step of a stream names its sequences")
    step: StepReported = _conforming(decode({**data, **_NOT_KEPT}))
    return replace(step, sequence_ids=ids[0], token_ids=ids[1])


def _conforming(event: Any) -> Any:
    if not conforms(event, type(event)):
        raise PlanFileError(f"a field of {type(event).__name__} has a value of a wrong type")
    return event


_EVENTS = frozenset(cls.__name__ for cls in get_args(Event))
