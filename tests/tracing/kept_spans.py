"""A tracer whose spans stay here."""

from __future__ import annotations

from tercet.tracing.context import TraceContext
from tercet.tracing.span import Span
from tercet.tracing.tracer import Tracer


class KeptSpans:
    """Takes spans and keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @property
    def counts(self) -> dict[str, int]:
        return {"sent": len(self.spans)}

    def put(self, span: Span) -> None:
        self.spans.append(span)

    def stop(self) -> None:
        pass

    def tracer(self, ratio: float = 1.0) -> Tracer:
        return Tracer(self, ratio)

    def named(self, name: str, parent: TraceContext | None = None) -> list[Span]:
        """Those of a name, below `parent` if that is given."""
        return [each for each in self.spans if each.name == name and (parent is None or below(each, parent))]


def below(span: Span, parent: TraceContext) -> bool:
    """Whether a span is a child of another."""
    return (span.context.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
