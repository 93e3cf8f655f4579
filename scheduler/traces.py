"""Spans of the requests that are traced: `schedule` from Submit to the end, `queue` until its first prefill begins.

Looks at what was decided; decides nothing, and the core does not know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tercet.errors import GatewayLostError
from tercet.tracing.context import TraceContext
from tercet.tracing.harmless import harmless
from tercet.tracing.span import Span, SpanEvent, Value, token_bucket
from tercet.tracing.span_clock import SpanClock
from tercet.tracing.tracer import Tracer

from .actions import (
    Accepted,
    Action,
    CancelDone,
    Log,
    NewSequence,
    Refused,
    SequenceEnd,
    ToGateway,
    TokenBatch,
    ToWorker,
)
from .events import Submission

# Events of one span; what is beyond is counted.
MAX_EVENTS = 64
# Of the line about a request's end, what its span has too.
_FIELDS = (
    "outcome", "reason", "tokens", "cached_tokens", "wasted_tokens", "preemptions", "swaps", "moves", "placements",
    "pauses", "paused_ms", "queue_ms", "gpu_ms", "forecast_ms", "waited_for",
)  # fmt: skip
_END = "request_finished"


@dataclass(slots=True, eq=False)
class _Traced:
    """A request on its way. `span` is its own, None where this process records nothing: then it only passes on."""

    gateway: int
    submission: Submission
    parent: TraceContext
    span: TraceContext | None
    clock: SpanClock
    started_ns: int
    facts: dict[str, Value] = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    num_events: int = 0
    sequence_ids: set[int] = field(default_factory=set)
    placed: bool = False
    error: str | None = None


class Traces:
    """True while there are traced requests: without, there is nothing to look at."""

    def __init__(self, tracer: Tracer) -> None:
        # Gateways that leave go on at another scheduler.
        self.parting = False
        self._tracer = tracer
        self._by_key: dict[tuple[int, int], _Traced] = {}
        self._by_sequence: dict[int, _Traced] = {}
        # Of two with the same id, which tenants may have, the later one.
        self._by_id: dict[str, _Traced] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @harmless
    def submitted(self, gateway: int, submission: Submission, parent: TraceContext | None) -> None:
        """A gateway has sent a request, which is part of that trace."""
        if parent is None or not parent.sampled:
            return
        clock = SpanClock()
        traced = _Traced(gateway, submission, parent, self._tracer.begin(parent), clock, clock.now_ns())
        self._by_key.setdefault((gateway, submission.request_key), traced)
        self._by_id[submission.request_id] = traced

    def context_of(self, sequence_id: int) -> TraceContext | None:
        """What the worker of a sequence is told."""
        traced = self._by_sequence.get(sequence_id)
        return None if traced is None else traced.span or traced.parent

    @harmless
    def look(self, actions: Iterable[Action]) -> None:
        """What came of a round."""
        ended: list[_Traced] = []
        for action in actions:
            if isinstance(action, ToGateway):
                ended += self._look_at_message(action)
            elif isinstance(action, ToWorker):
                if isinstance(action.command, NewSequence):
                    self._look_at_start(action.command.sequence_id)
            elif isinstance(action, Log):
                self._look_at_line(action)
        # Last: the line about a request's end may stand behind the message.
        for traced in ended:
            self._end(traced)

    @harmless
    def gateway_lost(self, gateway: int) -> None:
        """What it had asked for nobody waits for here."""
        for traced in [each for each in self._by_key.values() if each.gateway == gateway]:
            if self.parting:
                traced.facts["tercet.outcome"] = "MOVED"
            else:
                traced.error = GatewayLostError.reason
                traced.facts |= {"tercet.outcome": "CANCELLED", "tercet.reason": "LINK_LOST"}
            self._end(traced)

    def _look_at_message(self, action: ToGateway) -> list[_Traced]:
        """Returns those that are over."""
        message = action.message
        if isinstance(message, TokenBatch):
            return [traced for end in message.ends if (traced := self._look_at_end(end)) is not None]
        if not isinstance(message, (Accepted, Refused, CancelDone)):
            return []
        traced = self._by_key.get((action.gateway, message.request_key))
        if traced is None:
            return []
        if isinstance(message, Accepted):
            traced.sequence_ids.update(message.sequence_ids)
            self._by_sequence.update(dict.fromkeys(message.sequence_ids, traced))
            traced.facts |= {"tercet.queue_position": message.queue_position, "tercet.class": message.traffic_class}
            return []
        if isinstance(message, Refused):
            traced.error = message.failure.reason
            traced.facts |= {"tercet.outcome": "REFUSED", "tercet.reason": message.failure.reason}
        return [traced]

    def _look_at_start(self, sequence_id: int) -> None:
        traced = self._by_sequence.get(sequence_id)
        if traced is not None and not traced.placed:
            traced.placed = True
            self._put_queue(traced)

    def _look_at_end(self, end: SequenceEnd) -> _Traced | None:
        """Returns the request if that was its last sequence."""
        traced = self._by_sequence.pop(end.sequence_id, None)
        if traced is None:
            return None
        traced.sequence_ids.discard(end.sequence_id)
        if end.failure is not None:
            traced.error = traced.error or end.failure.reason
        return None if traced.sequence_ids else traced

    def _look_at_line(self, line: Log) -> None:
        fields = line.fields
        traced = self._by_sequence.get(fields.get("sequence_id", 0)) or self._by_id.get(fields.get("request_id", ""))
        if traced is None:
            return
        if line.event == _END:
            traced.facts |= _known({f"tercet.{name}": fields.get(name) for name in _FIELDS})
            return
        traced.num_events += 1
        if len(traced.events) < MAX_EVENTS:
            facts = {f"tercet.{name}": value for name, value in fields.items() if name not in ("request_id", "why")}
            traced.events.append(SpanEvent(line.event, traced.clock.now_ns(), _known(facts)))

    def _put_queue(self, traced: _Traced) -> None:
        if traced.span is not None:
            context = self._tracer.child(traced.span)
            now_ns = traced.clock.now_ns()
            self._tracer.put(Span("queue", context, traced.span.span_id, traced.started_ns, now_ns, {}))

    def _end(self, traced: _Traced) -> None:
        submission = traced.submission
        self._by_key.pop((traced.gateway, submission.request_key), None)
        for sequence_id in traced.sequence_ids:
            self._by_sequence.pop(sequence_id, None)
        if self._by_id.get(submission.request_id) is traced:
            del self._by_id[submission.request_id]
        if traced.span is None:
            return
        if not traced.placed:
            self._put_queue(traced)
        facts: dict[str, Value] = {
            "tercet.request.id": submission.request_id,
            "tercet.tenant": submission.tenant,
            "tercet.priority": submission.priority,
            "gen_ai.request.model": submission.model,
            "tercet.model.revision": submission.model_revision,
            "tercet.outputs": submission.n,
            "tercet.input_bucket": token_bucket(len(submission.prompt_token_ids)),
            "tercet.taken_over": bool(submission.begun),
            **traced.facts,
        }
        if traced.num_events > len(traced.events):
            facts["tercet.events_left_out"] = traced.num_events - len(traced.events)
        self._tracer.put(
            Span(
                "schedule",
                traced.span,
                traced.parent.span_id,
                traced.started_ns,
                traced.clock.now_ns(),
                facts,
                events=tuple(traced.events),
                error=traced.error,
            )
        )


def _known(facts: Mapping[str, Any]) -> dict[str, Value]:
    """What has a value that a span can have."""
    return {name: value for name, value in facts.items() if isinstance(value, (str, bool, int, float)) and value != ""}
