"""Spans of sequences, beside a real executor that is driven step by step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.tracing.context import TraceContext
from tercet.tracing.span import Span
from tests.tracing.kept_spans import KeptSpans
from tests.worker.stepped_executor import SteppedExecutor, ended_of, tokens_of
from worker.messages import Chunk, Command, Event, Fork, NewSequence, Release, ReleaseCause, Rest, Resume, Sampling
from worker.traces import MAX_EVENTS, Traces

PARENT = TraceContext(1, 2, True, "a=b")


class TracedExecutor:
    """What goes in and what comes out is looked at as in a worker's service."""

    def __init__(self, **options: int) -> None:
        self.bench = SteppedExecutor(**options)
        self.kept = KeptSpans()
        self.traces = Traces(self.kept.tracer())
        self.events: list[Event] = []

    def run(self, *commands: Command, context: TraceContext | None = PARENT) -> None:
        for command in commands:
            self.traces.commanded(command, context if isinstance(command, NewSequence) else None)
        events = self.bench.run(*commands)
        for event in events:
            self.traces.told(event)
        self.events += events

    def span(self, sequence_id: int) -> Span:
        (found,) = [
            each for each in self.kept.named("sequence") if each.attributes["tercet.sequence.id"] == sequence_id
        ]
        return found

    def stages(self, span: Span) -> dict[str, Span]:
        return {each.name: each for name in ("prefill", "decode") for each in self.kept.named(name, span.context)}


def plans(span: Span) -> list[dict[str, object]]:
    return [dict(event.attributes) for event in span.events if event.name == "plan"]


def test_a_sequence_is_a_span_with_its_stages_and_plans() -> None:
    traced = TracedExecutor()
    bench = traced.bench
    traced.run(NewSequence(1, tuple(range(10)), 20), bench.plan(1, chunks=(Chunk(1, 6),)))
    traced.run(bench.plan(3, chunks=(Chunk(1, 9),), join=(1,)), bench.plan(20))
    span = traced.span(1)
    assert (span.context.trace_id, span.parent_id, span.context.state) == (1, 2, "a=b")
    assert span.attributes["tercet.tokens"] == len(tokens_of(traced.events, 1)) == 10
    assert (span.attributes["tercet.prefill_tokens"], span.attributes["tercet.outcome"]) == (10, "length")
    stages = traced.stages(span)
    assert span.started_ns == stages["prefill"].started_ns <= stages["prefill"].ended_ns
    assert stages["prefill"].ended_ns == stages["decode"].started_ns <= stages["decode"].ended_ns == span.ended_ns
    told = plans(span)
    assert [each["tercet.plan_seq"] for each in told] == [1, 2, 3]
    assert [each["tercet.prefill_tokens"] for each in told] == [6, 4, 0]
    assert [each["tercet.tokens"] for each in told] == [0, 3, 7]
    assert span.attributes["tercet.plans"] == 3
    assert not traced.traces._traced


def test_who_is_not_traced_has_no_span() -> None:
    traced = TracedExecutor()
    plan = traced.bench.plan(30, chunks=(Chunk(1, 9),), join=(1,))
    traced.run(NewSequence(1, (1, 2), 9), plan, context=None)
    traced.run(NewSequence(2, (1, 2), 9), context=TraceContext(1, 2, False))
    assert ended_of(traced.events).keys() == {1}
    assert not traced.kept.spans
    assert not traced.traces._traced


def test_forks_begin_with_their_first_token_and_are_linked_to_their_leader() -> None:
    traced = TracedExecutor()
    spec = NewSequence(1, (1, 2, 3), 9, sampling=Sampling(seed=1), forks=(Fork(2, 2), Fork(3, 3)))
    traced.run(spec, traced.bench.plan(30, chunks=(Chunk(1, 9),), join=(1,)))
    leader = traced.span(1)
    for number in (2, 3):
        fork = traced.span(number)
        assert fork.links == (leader.context,)
        assert fork.parent_id == PARENT.span_id
        assert fork.started_ns >= traced.stages(leader)["prefill"].ended_ns
        assert traced.stages(fork).keys() == {"decode"}
        assert fork.attributes["tercet.tokens"] == 6


def test_what_is_released_before_its_forks_began_leaves_no_span_of_these() -> None:
    traced = TracedExecutor()
    spec = NewSequence(1, (1, 2, 3), 9, forks=(Fork(2, 2),))
    traced.run(spec, traced.bench.plan(1, chunks=(Chunk(1, 1),)))
    traced.run(Release((1, 2), ReleaseCause.CANCEL))
    assert traced.span(1).attributes["tercet.outcome"] == "cancel"
    assert len(traced.kept.named("sequence")) == 1
    assert not traced.traces._traced


@pytest.mark.parametrize("room", [0, 64])
def test_one_that_gives_way_goes_on_in_the_same_span_only_if_its_blocks_do(room: int) -> None:
    traced = TracedExecutor(num_swap_blocks=room)
    bench = traced.bench
    traced.run(NewSequence(1, (1, 2, 3), 30), bench.plan(4, chunks=(Chunk(1, 9),), join=(1,)))
    traced.run(Release((1,), ReleaseCause.SWAP))
    if room:
        traced.run(Resume((1,)), bench.plan(4, join=(1,)))
        traced.run(Rest((1,)))
        traced.run(Release((1,), ReleaseCause.CANCEL))
    span = traced.span(1)
    names = [event.name for event in span.events]
    assert names == (["plan", "swapped_out", "resumed", "plan", "rests"] if room else ["plan"])
    assert span.attributes["tercet.outcome"] == ("cancel" if room else "swap")


def test_a_scheduler_that_leaves_ends_all_spans_with_an_error() -> None:
    traced = TracedExecutor()
    traced.run(NewSequence(1, (1, 2, 3), 30), traced.bench.plan(4, chunks=(Chunk(1, 9),), join=(1,)))
    traced.traces.detached()
    assert (traced.span(1).error, traced.span(1).attributes["tercet.outcome"]) == ("SCHEDULER_LOST", "lost")
    assert not traced.traces._traced


def test_one_that_cannot_be_run_has_failed() -> None:
    traced = TracedExecutor()
    traced.run(NewSequence(1, (1,), 5, problem="no"), traced.bench.plan(1))
    assert traced.span(1).error == "ENGINE_FAULT"


def test_events_are_bounded_and_the_others_counted() -> None:
    traced = TracedExecutor(num_blocks=128)
    bench = traced.bench
    traced.run(NewSequence(1, (1,), 200), bench.plan(1, chunks=(Chunk(1, 9),), join=(1,)))
    for _ in range(MAX_EVENTS + 20):
        traced.run(bench.plan(1))
    traced.run(Release((1,), ReleaseCause.CANCEL))
    span = traced.span(1)
    assert len(span.events) == MAX_EVENTS
    assert span.attributes["tercet.events_left_out"] == 21
    assert span.attributes["tercet.plans"] == MAX_EVENTS + 21


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(0, 2), st.booleans()), min_size=1, max_size=5
    ),
    st.integers(1, 6),
    st.integers(0, 40),
)
def test_spans_have_all_tokens_of_those_that_are_traced(
    asked: list[tuple[int, int, int, bool]], num_steps: int, released_after: int
) -> None:
    traced = TracedExecutor(num_blocks=256)
    bench, expected = traced.bench, set()
    for number, (prompt, length, forks, sampled) in enumerate(asked):
        ids = [10 * number + each for each in range(1, forks + 2)]
        spec = NewSequence(
            ids[0], (number + 1,) * prompt, prompt + length, sampling=Sampling(temperature=1.0, seed=number),
            forks=tuple(Fork(each, each) for each in ids[1:]),
        )  # fmt: skip
        traced.run(spec, context=PARENT if sampled else None)
        expected |= set(ids) if sampled else set()
    leaders = [10 * number + 1 for number in range(len(asked))]
    traced.run(bench.plan(num_steps, chunks=tuple(Chunk(each, 9) for each in leaders), join=tuple(leaders)))
    for turn in range(20):
        if turn == released_after:
            traced.run(Release((1,), ReleaseCause.CANCEL))
        traced.run(bench.plan(num_steps))
    assert not traced.traces._traced
    assert {each.attributes["tercet.sequence.id"] for each in traced.kept.named("sequence")} == expected
    for number in expected:
        span = traced.span(number)
        assert span.attributes["tercet.tokens"] == len(tokens_of(traced.events, number))
        assert sum(each["tercet.tokens"] for each in plans(span)) == span.attributes["tercet.tokens"]  # type: ignore[misc]
