from __future__ import annotations

from tercet.metrics.metric import Reading
from tercet.tracing.context import TraceContext
from tercet.tracing.metrics import SPANS, put_spans
from tercet.tracing.span import Span
from tercet.tracing.tracer import Tracer

from .kept_spans import KeptSpans


def test_what_became_of_spans_is_told_where_something_is_traced() -> None:
    tracer, reading = KeptSpans().tracer(), Reading()
    for number in (1, 2):
        tracer.put(Span("a", TraceContext(1, number, True), 0, 0, 1, {}))
    put_spans(reading, tracer)
    assert list(reading.samples(SPANS)) == [(("sent",), 2)]


def test_nothing_is_told_where_nothing_is() -> None:
    reading = Reading()
    put_spans(reading, Tracer())
    assert list(reading.samples(SPANS)) == []
