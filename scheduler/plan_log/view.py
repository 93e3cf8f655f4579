"""A plan log for people: what happened in each round, and what was planned. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

from ..actions import (
    Accepted,
    Action,
    DropWorker,
    Log,
    NewSequence,
    Plan,
    Refused,
    Release,
    Rest,
    Resume,
    ToGateway,
    ToWorker,
)
from ..events import (
    AddressesChanged,
    CancelReceived,
    DrainExpired,
    DrainStarted,
    Event,
    GatewayAttached,
    GatewayLost,
    KvChanged,
    PauseReceived,
    PlanEnded,
    SequenceReleased,
    SequenceRests,
    SequenceStopped,
    StepReported,
    Submitted,
    TenantsChanged,
    TimePassed,
    UnpauseReceived,
    WorkerAttached,
    WorkerDraining,
    WorkerLost,
)
from .plan_file import PlanFile
from .replay import Played

# Ids in a line; of more, how many there are.
MAX_IDS = 8


def round_lines(file: PlanFile, played: Played) -> Iterator[str]:
    """Lines of one round: its number and time, its events, and, indented, what the core made of them."""
    moment = datetime.fromtimestamp(file.written_at - (file.clock - played.round.now), timezone.utc)
    head = f"{played.number} {moment.strftime('%H:%M:%S.%f')[:-3]}"
    for event in played.round.events:
        yield f"{head}  {_EVENTS[type(event)](event)}"
        head = " " * len(head)
    for action in played.actions:
        text = _action_text(action)
        if text:
            yield f"{' ' * len(head)}    {text}"


def _ids(ids: tuple[int, ...]) -> str:
    if len(ids) > MAX_IDS:
        return f"{len(ids)} of them"
    return ", ".join(map(str, ids)) or "none"


def _action_text(action: Action) -> str | None:
    if isinstance(action, ToWorker):
        return f"to link {action.link}: {_COMMANDS[type(action.command)](action.command)}"
    if isinstance(action, DropWorker):
        return f"link {action.link} is dropped: {action.why}"
    if isinstance(action, ToGateway):
        message = action.message
        if isinstance(message, Accepted):
            return f"accepted as sequence {_ids(message.sequence_ids)}; {message.queue_position} ahead in the queue"
        if isinstance(message, Refused):
            return f"refused: {message.failure.reason}"
        return None
    assert isinstance(action, Log)
    if action.event not in _SHOWN:
        return None
    facts = " ".join(f"{name}={action.fields[name]}" for name in _SHOWN[action.event] if name in action.fields)
    return f"{action.event} {facts}"


# What the core writes to the log and the events do not show.
_SHOWN = {
    "preempted": ("request_id", "sequence_id", "swap"),
    "moved_away": ("address", "sequences"),
    "request_finished": ("request_id", "outcome", "reason", "tokens", "cached_tokens", "queue_ms", "total_ms"),
}


def _plan(plan: Plan) -> str:
    chunks = ", ".join(f"{sequence_id}: {count}" for sequence_id, count in plan.chunks[:MAX_IDS])
    parts = [
        f"plan {plan.plan_seq} of {plan.num_steps} steps",
        f"chunks {chunks}{', ...' if len(plan.chunks) > MAX_IDS else ''}" if chunks else "",
        f"joins {_ids(plan.join)}" if plan.join else "",
        f"revokes through {plan.revoke_through}" if plan.revoke_through else "",
    ]
    return "; ".join(part for part in parts if part)


def _new(new: NewSequence) -> str:
    forks = f", forks {_ids(tuple(sequence_id for sequence_id, _ in new.forks))}" if new.forks else ""
    return f"sequence {new.sequence_id} of {len(new.token_ids)} tokens, at most {new.max_length}{forks}"


_COMMANDS: dict[type, Callable[[Any], str]] = {
    Plan: _plan,
    NewSequence: _new,
    Release: lambda release: f"release {_ids(release.sequence_ids)} to {release.cause.name.lower()}",
    Rest: lambda rest: f"let {_ids(rest.sequence_ids)} rest",
    Resume: lambda resume: f"resume {_ids(resume.sequence_ids)}",
}


def _submitted(event: Submitted) -> str:
    submission = event.submission
    outputs = f", {submission.n} outputs" if submission.n > 1 else ""
    kind = f", {submission.traffic_class}" if submission.traffic_class else ""
    whose = f", of tenant {submission.tenant}" if submission.tenant else ""
    priority = f", priority {submission.priority}" if submission.priority else ""
    return (
        f"request {submission.request_id} for {submission.model}: prompt of {len(submission.prompt_token_ids)} tokens, "
        f"at most {submission.max_tokens} more{outputs}{kind}{priority}{whose}"
    )


def _step(event: StepReported) -> str:
    prefills = "".join(
        f"; {each.sequence_id} has {each.num_computed} tokens, {each.num_cached} from cache" for each in event.prefills
    )
    ended = "".join(f"; {each.sequence_id} ended: {each.reason.name}" for each in event.ended)
    blocks = event.blocks
    return (
        f"link {event.link}: step {event.step} of plan {event.plan_seq} in {event.step_us / 1e3:.3f} ms gave "
        f"{len(event.token_ids)} tokens{prefills}{ended}; blocks: {blocks.free} free, {blocks.cached} cached, "
        f"{blocks.used} used"
    )


def _released(event: SequenceReleased) -> str:
    how = "swapped out" if event.swapped else "released" if event.found else "had ended"
    return f"link {event.link}: sequence {event.sequence_id} {how}, {event.blocks_freed} blocks freed"


_EVENTS: dict[type[Event], Callable[[Any], str]] = {
    GatewayAttached: lambda event: f"gateway {event.gateway_id} is there",
    GatewayLost: lambda event: f"gateway stream {event.gateway} is lost",
    TenantsChanged: lambda event: f"{len(event.plans)} tenants, revision {event.revision}",
    Submitted: _submitted,
    CancelReceived: lambda event: f"cancel of request key {event.request_key}: {event.reason.name}",
    SequenceStopped: lambda event: f"sequence {event.sequence_id} is stopped: {event.reason.name}",
    PauseReceived: lambda event: f"request key {event.request_key} is paused",
    UnpauseReceived: lambda event: f"request key {event.request_key} goes on",
    AddressesChanged: lambda event: f"workers are looked for at {', '.join(event.addresses)}",
    WorkerAttached: lambda event: (
        f"link {event.link}: worker {event.info.worker_id} at {event.address}, {event.info.num_blocks} blocks"
    ),
    WorkerLost: lambda event: f"link {event.link} is lost",
    WorkerDraining: lambda event: f"link {event.link}: about to stop",
    KvChanged: lambda event: (
        f"link {event.link}: prefix cache {'begins with' if event.reset else 'got'} {len(event.stored)} blocks, "
        f"lost {len(event.removed)}"
    ),
    StepReported: _step,
    PlanEnded: lambda event: (
        f"link {event.link}: plan {event.plan_seq} {'revoked' if event.revoked else 'ended'} after "
        f"{event.steps_run} steps"
    ),
    SequenceReleased: _released,
    SequenceRests: lambda event: (
        f"link {event.link}: sequence {event.sequence_id} {'rests' if event.found else 'had ended'}"
    ),
    TimePassed: lambda _: "time passed",
    DrainStarted: lambda _: "takes no new requests",
    DrainExpired: lambda _: "ends all that is left",
}
