"""Spans of the sequences that are traced: `sequence` for each time on this worker, in it `prefill` and `decode`, and an
event for each plan.

Looks at what the scheduler says and is told; the executor does not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tercet.errors import SchedulerLostError
from tercet.tracing.context import TraceContext
from tercet.tracing.harmless import harmless
from tercet.tracing.span import Span, SpanEvent, Value, token_bucket
from tercet.tracing.span_clock import SpanClock
from tercet.tracing.tracer import Tracer

from .messages import Command, Ended, Event, NewSequence, PlanDone, Released, Resting, Resume, StepResult

# Events of one span, most of them plans; what is beyond is counted.
MAX_EVENTS = 64


@dataclass(slots=True)
class _PlanPart:
    """What a plan did for one sequence."""

    plan_seq: int
    steps: int = 0
    tokens: int = 0
    prefill_tokens: int = 0
    step_us: int = 0
    longest_step_us: int = 0


@dataclass(slots=True, eq=False)
class _Traced:
    """A sequence on the worker. A fork has a `leader`, and begins with its first token."""

    spec: NewSequence
    sequence_id: int
    parent: TraceContext
    span: TraceContext
    clock: SpanClock
    started_ns: int
    leader: TraceContext | None = None
    first_token_ns: int | None = None
    tokens: int = 0
    computed: int = 0
    cached: int = 0
    plan: _PlanPart | None = None
    plans: int = 0
    steps: int = 0
    step_us: int = 0
    events: list[SpanEvent] = field(default_factory=list)
    events_left_out: int = 0

    def note_event(self, name: str, **facts: Value) -> None:
        if len(self.events) < MAX_EVENTS:
            attributes = {f"tercet.{key}": value for key, value in facts.items()}
            self.events.append(SpanEvent(name, self.clock.now_ns(), attributes))
        else:
            self.events_left_out += 1

    def step_of(self, step: StepResult) -> _PlanPart:
        """The plan that a step belongs to, of which the sequence takes part in one more step."""
        if self.plan is None or self.plan.plan_seq != step.plan_seq:
            self.close_plan()
            self.plan = _PlanPart(step.plan_seq)
        plan = self.plan
        plan.steps += 1
        plan.step_us += step.step_us
        plan.longest_step_us = max(plan.longest_step_us, step.step_us)
        return plan

    def close_plan(self, *, revoked: bool = False) -> None:
        """Nothing more comes of the plan that it is in."""
        plan, self.plan = self.plan, None
        if plan is None:
            return
        self.plans += 1
        self.steps += plan.steps
        self.step_us += plan.step_us
        self.note_event(
            "plan",
            plan_seq=plan.plan_seq,
            steps=plan.steps,
            tokens=plan.tokens,
            prefill_tokens=plan.prefill_tokens,
            step_us=plan.step_us,
            longest_step_us=plan.longest_step_us,
            revoked=revoked,
        )


class Traces:
    """The traced sequences of one scheduler's stream. Costs nothing while there are none."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._traced: dict[int, _Traced] = {}

    @harmless
    def commanded(self, command: Command, context: TraceContext | None) -> None:
        """The scheduler has sent that; a new sequence is part of `context`, if it is traced."""
        if isinstance(command, NewSequence):
            span = None if context is None else self._tracer.begin(context)
            if span is not None and context is not None:
                self._begin(command, context, span)
        elif isinstance(command, Resume) and self._traced:
            for sequence_id in command.sequence_ids:
                if (traced := self._traced.get(sequence_id)) is not None:
                    traced.note_event("resumed")

    @harmless
    def told(self, event: Event) -> None:
        """The scheduler is told that."""
        if not self._traced:
            return
        match event:
            case StepResult():
                self._look_at_step(event)
            case PlanDone():
                for traced in self._traced.values():
                    if traced.plan is not None and traced.plan.plan_seq == event.plan_seq:
                        traced.close_plan(revoked=event.revoked)
            case Released():
                self._look_at_release(event)
            case Resting():
                if (traced_one := self._traced.get(event.sequence_id)) is not None:
                    traced_one.note_event("rests")
            case _:
                pass

    @harmless
    def detached(self) -> None:
        """The stream is over, and with it all its sequences."""
        for sequence_id in list(self._traced):
            self._end(sequence_id, "lost", SchedulerLostError.reason)

    def _begin(self, spec: NewSequence, parent: TraceContext, span: TraceContext) -> None:
        clock = SpanClock()
        now_ns = clock.now_ns()
        self._end(spec.sequence_id, "replaced")
        self._traced[spec.sequence_id] = _Traced(spec, spec.sequence_id, parent, span, clock, now_ns)
        for fork in spec.forks:
            own = self._tracer.child(parent)
            self._traced[fork.sequence_id] = _Traced(spec, fork.sequence_id, parent, own, clock, now_ns, leader=span)

    def _look_at_step(self, step: StepResult) -> None:
        get = self._traced.get
        for progress in step.prefills:
            if (traced := get(progress.sequence_id)) is not None:
                before = max(traced.computed, progress.num_cached)
                traced.step_of(step).prefill_tokens += progress.num_computed - before
                traced.computed, traced.cached = progress.num_computed, progress.num_cached
        chunks = {progress.sequence_id for progress in step.prefills}
        for sequence_id in step.sequence_ids:
            if (traced := get(sequence_id)) is None:
                continue
            # The step that ends a prefill gives the first token, too.
            plan = traced.plan if sequence_id in chunks and traced.plan is not None else traced.step_of(step)
            plan.tokens += 1
            traced.tokens += 1
            if traced.first_token_ns is None:
                traced.first_token_ns = traced.clock.now_ns()
                if traced.leader is not None:
                    traced.started_ns = traced.first_token_ns
        for ended in step.ended:
            self._look_at_end(ended)

    def _look_at_end(self, ended: Ended) -> None:
        error = None if ended.failure is None else ended.failure.reason
        self._end(ended.sequence_id, ended.reason.value, error)

    def _look_at_release(self, released: Released) -> None:
        if released.swapped:
            if (traced := self._traced.get(released.sequence_id)) is not None:
                traced.note_event("swapped_out", blocks=released.blocks_used)
        else:
            self._end(released.sequence_id, released.cause.value)

    def _end(self, sequence_id: int, outcome: str, error: str | None = None) -> None:
        traced = self._traced.pop(sequence_id, None)
        if traced is None:
            return
        ended_ns = traced.clock.now_ns()
        if traced.leader is not None and traced.first_token_ns is None:
            return  # a fork that never began
        traced.close_plan()
        self._put_stages(traced, ended_ns)
        facts: dict[str, Value] = {
            "tercet.sequence.id": sequence_id,
            "tercet.outcome": outcome,
            "tercet.input_bucket": token_bucket(len(traced.spec.token_ids)),
            "tercet.prefill_tokens": traced.computed - traced.cached,
            "tercet.cached_tokens": traced.cached,
            "tercet.tokens": traced.tokens,
            "tercet.plans": traced.plans,
            "tercet.steps": traced.steps,
            "tercet.step_us": traced.step_us,
        }
        if traced.events_left_out:
            facts["tercet.events_left_out"] = traced.events_left_out
        self._tracer.put(
            Span(
                "sequence",
                traced.span,
                traced.parent.span_id,
                traced.started_ns,
                ended_ns,
                facts,
                events=tuple(traced.events),
                links=() if traced.leader is None else (traced.leader,),
                error=error,
            )
        )

    def _put_stages(self, traced: _Traced, ended_ns: int) -> None:
        first_ns = traced.first_token_ns
        stages = [("prefill", traced.started_ns, ended_ns if first_ns is None else first_ns)]
        if first_ns is not None:
            stages.append(("decode", first_ns, ended_ns))
        if traced.leader is not None:
            # The prompt was its leader's work.
            stages = stages[1:]
        for name, since_ns, until_ns in stages:
            self._tracer.put(Span(name, self._tracer.child(traced.span), traced.span.span_id, since_ns, until_ns, {}))
