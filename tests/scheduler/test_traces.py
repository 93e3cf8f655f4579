"""Spans of requests, beside the real core in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import settle

from scheduler.actions import Action, NewSequence, ToWorker
from scheduler.events import CancelReason, Submission
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.traces import MAX_EVENTS, Traces
from tercet.tracing.context import TraceContext
from tercet.tracing.span import Span
from tercet.tracing.tracer import Tracer
from tests.tracing.kept_spans import KeptSpans


class TracedMesh(VirtualMesh):
    """`told` has, for each NewSequence, what its worker would be told of its trace."""

    def __init__(self, infos: Sequence[Any] | None = None, tracer: Tracer | None = None, **options: Any) -> None:
        self.kept = KeptSpans()
        self.traces = Traces(tracer or self.kept.tracer())
        self.told: list[tuple[int, TraceContext | None]] = []
        self._round: list[Action] = []
        super().__init__(infos, **options)

    def ask(self, gateway: VirtualGateway, asked: Submission, parent: TraceContext | None) -> Call:
        self.traces.submitted(gateway.number, asked, parent)
        return self.submit(gateway, asked)

    def lose_gateway(self, gateway: VirtualGateway) -> None:
        self.traces.gateway_lost(gateway.number)
        super().lose_gateway(gateway)

    def _flush(self) -> None:
        outer, self._round = self._round, []
        super()._flush()
        self.traces.look(self._round)
        for action in self._round:
            if isinstance(action, ToWorker) and isinstance(action.command, NewSequence):
                sequence_id = action.command.sequence_id
                self.told.append((sequence_id, self.traces.context_of(sequence_id)))
        self._round = outer

    def _act(self, action: Action) -> None:
        self._round.append(action)
        super()._act(action)


def context(number: int, *, sampled: bool = True) -> TraceContext:
    return TraceContext(1000 + number, 7, sampled, "a=b")


def one(kept: KeptSpans, name: str, parent: TraceContext) -> Span:
    (found,) = kept.named(name, parent)
    return found


def test_a_request_is_a_span_with_its_wait() -> None:
    mesh = TracedMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.ask(gateway, submission(1, max_tokens=5, traffic_class="batch"), context(1))
    assert mesh.traces
    settle(mesh)
    assert not mesh.traces
    span = one(mesh.kept, "schedule", context(1))
    wait = one(mesh.kept, "queue", span.context)
    assert span.started_ns == wait.started_ns <= wait.ended_ns <= span.ended_ns
    assert (span.context.state, span.error) == ("a=b", None)
    facts = span.attributes
    assert (facts["tercet.outcome"], facts["tercet.tokens"], facts["tercet.class"]) == ("LENGTH", 5, "batch")
    assert facts["tercet.input_bucket"] == "1-128"
    assert mesh.told == [(1, span.context)]


def test_who_is_not_sampled_has_no_span_and_nobody_looks() -> None:
    mesh = TracedMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.ask(gateway, submission(1), context(1, sampled=False))
    mesh.ask(gateway, submission(2), None)
    assert not mesh.traces
    settle(mesh)
    assert not mesh.kept.spans
    assert [told for _, told in mesh.told] == [None, None]


def test_without_a_collector_the_context_is_passed_on_as_it_came() -> None:
    mesh = TracedMesh(tracer=Tracer())
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.ask(gateway, submission(1), context(1))
    settle(mesh)
    assert mesh.told == [(1, context(1))]
    assert not mesh.kept.spans
    assert not mesh.traces


def test_one_that_is_preempted_tells_so() -> None:
    mesh = TracedMesh([worker_info(num_blocks=8)])
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    for number in (1, 2):
        mesh.ask(gateway, submission(number, (number,) * 6, 20), context(number))
    settle(mesh)
    spans = mesh.kept.named("schedule")
    told = [event for span in spans for event in span.events if event.name == "preempted"]
    assert told
    assert sum(span.attributes["tercet.preemptions"] for span in spans) == len(told)  # type: ignore[misc]
    # Each placement is told the same.
    assert len(mesh.told) == 2 + len(told)
    assert {told.span_id for _, told in mesh.told if told} == {span.context.span_id for span in spans}


@pytest.mark.parametrize("there", [True, False])
def test_a_cancel_is_no_error_and_a_refusal_is(there: bool) -> None:
    mesh = TracedMesh()
    gateway = mesh.attach_gateway()
    if there:
        mesh.attach_worker()
    call = mesh.ask(gateway, submission(1, max_tokens=100), context(1))
    mesh.run(0.2)
    mesh.cancel(gateway, call)
    settle(mesh)
    span = one(mesh.kept, "schedule", context(1))
    if there:
        assert (span.attributes["tercet.outcome"], span.attributes["tercet.reason"]) == ("CANCELLED", "CLIENT")
        assert span.error is None
        assert {"cancel_received", "release_sent", "released"} <= {event.name for event in span.events}
    else:
        assert span.attributes["tercet.outcome"] == "REFUSED"
        assert span.error == span.attributes["tercet.reason"]


@pytest.mark.parametrize("parting", [True, False])
def test_a_gateway_that_is_lost_leaves_no_request_behind(parting: bool) -> None:
    mesh = TracedMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    mesh.ask(gateway, submission(1, max_tokens=100), context(1))
    mesh.run(0.2)
    mesh.traces.parting = parting
    mesh.lose_gateway(gateway)
    assert not mesh.traces
    settle(mesh)
    span = one(mesh.kept, "schedule", context(1))
    assert span.error == (None if parting else "GATEWAY_LOST")
    assert span.attributes["tercet.outcome"] == ("MOVED" if parting else "CANCELLED")


def test_events_of_a_span_are_bounded_and_the_others_counted() -> None:
    mesh = TracedMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    call = mesh.ask(gateway, submission(1, max_tokens=100), context(1))
    for number in range(MAX_EVENTS):
        mesh.at(0.1 + number * 1e-4, lambda: mesh.pause(gateway, call))
        mesh.at(0.1 + number * 1e-4 + 5e-5, lambda: mesh.unpause(gateway, call))
    settle(mesh)
    span = one(mesh.kept, "schedule", context(1))
    assert len(span.events) == MAX_EVENTS
    assert span.attributes["tercet.events_left_out"] == MAX_EVENTS


requests = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(1, 20), st.integers(1, 30), st.integers(1, 3), st.booleans(),
        st.one_of(st.none(), st.floats(0, 0.5)), st.integers(1, 2),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(requests, st.booleans(), st.integers(0, 99))
def test_each_traced_request_has_one_span_whatever_happens(asked: list[Any], worker_fails: bool, seed: int) -> None:
    mesh = TracedMesh([worker_info(num_blocks=24)] * 2, seed=seed, batching=True)
    gateways = {number: mesh.attach_gateway(number) for number in (1, 2)}
    workers = [mesh.attach_worker(0), mesh.attach_worker(1)]
    traced = set()
    for key, (at, prompt, tokens, n, sampled, cancel, gateway) in enumerate(asked, 1):

        def come(key: int = key, asked: tuple[Any, ...] = (prompt, tokens, n, sampled, cancel, gateway)) -> None:
            prompt, tokens, n, sampled, cancel, gateway = asked
            made = submission(key, (key,) * prompt, tokens, n=n)
            call = mesh.ask(gateways[gateway], made, context(key, sampled=sampled))
            if cancel is not None:
                mesh.at(mesh.now + cancel, lambda: mesh.cancel(gateways[gateway], call, CancelReason.CLIENT))

        mesh.at(at, come)
        if sampled:
            traced.add(1000 + key)
    if worker_fails:
        mesh.at(0.5, lambda: mesh.lose_worker(workers[1]))
    settle(mesh)
    assert not mesh.traces
    assert not mesh.traces._by_sequence
    assert not mesh.traces._by_id
    spans = mesh.kept.named("schedule")
    assert sorted(span.context.trace_id for span in spans) == sorted(traced)
    assert all(len(mesh.kept.named("queue", span.context)) == 1 for span in spans)
    assert all("tercet.outcome" in span.attributes for span in spans)
    # Whose sequences are traced is told with each of them, and with no others.
    by_trace = {span.context.trace_id: span.context for span in spans}
    assert {told for _, told in mesh.told if told is not None} <= set(by_trace.values())
