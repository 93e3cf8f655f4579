"""The context of a trace to and from tercet.mesh.v1."""

from __future__ import annotations

from tercet.mesh.v1 import sequence_pb2

from .context import TraceContext, read_context


def context_to_proto(context: TraceContext | None) -> sequence_pb2.TraceContext | None:
    """The message; None: none is sent."""
    if context is None:
        return None
    return sequence_pb2.TraceContext(traceparent=context.traceparent, tracestate=context.state)


def context_from_proto(message: sequence_pb2.TraceContext) -> TraceContext | None:
    """The context; None if it is not well formed, for which nothing fails."""
    return read_context(message.traceparent, message.tracestate)
