"""Spans to an OTLP collector over gRPC. The only file that knows OpenTelemetry's own classes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from tercet import __version__
from tercet.errors import ConfigError

from .context import TraceContext
from .redactor import Redactor
from .settings import TracesSettings
from .span import Attributes, Content, Kind, Span

# A collector that has not taken a batch by then does not get it.
SEND_SECONDS = 5.0
# The event that has what was said, and its attributes.
CONTENT_EVENT = "gen_ai.client.inference.operation.details"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"

_KINDS = {Kind.INTERNAL: SpanKind.INTERNAL, Kind.SERVER: SpanKind.SERVER}
_SCOPE = InstrumentationScope("tercet", __version__)


class OtlpSender:
    """Headers, certificates and compression are those that OTEL_EXPORTER_OTLP_... of the environment name."""

    def __init__(self, settings: TracesSettings, service: str, instance: str, attributes: Attributes) -> None:
        """Raises ConfigError for an endpoint that is of no use."""
        # Its own lines, one for each try, would fill a log for as long as the collector is away.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._redactor = Redactor(settings.redact, settings.content_max_chars)
        self._retention_days = settings.content_retention_days
        self._resource = Resource(
            {
                "service.namespace": "tercet",
                "service.name": f"tercet-{service}",
                "service.version": __version__,
                "service.instance.id": instance,
                "host.name": socket.gethostname(),
                "process.pid": os.getpid(),
                **attributes,
            }
        )
        try:
            self._exporter = OTLPSpanExporter(endpoint=settings.endpoint, timeout=SEND_SECONDS)
        except Exception as error:
            raise ConfigError("traces.endpoint", f"is of no use: {error}") from error

    def send(self, spans: Sequence[Span]) -> bool:
        """Hands spans over; whether they were taken."""
        return self._exporter.export([self.readable(each) for each in spans]) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Ends a `send` that is under way."""
        self._exporter.shutdown()

    def readable(self, span: Span) -> ReadableSpan:
        """A span as the exporter takes it."""
        attributes = dict(span.attributes)
        status = Status(StatusCode.UNSET)
        if span.error is not None:
            attributes["error.type"] = span.error
            status = Status(StatusCode.ERROR)
        events = [Event(each.name, dict(each.attributes), each.at_ns) for each in span.events]
        if span.content is not None:
            events.append(self._content_event(span.content, span.ended_ns))
        context = _otel_context(span.context)
        parent = None
        if span.parent_id:
            parent = SpanContext(context.trace_id, span.parent_id, is_remote=True, trace_flags=context.trace_flags)
        return ReadableSpan(
            name=span.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=events,
            links=[Link(_otel_context(each)) for each in span.links],
            kind=_KINDS[span.kind],
            status=status,
            start_time=span.started_ns,
            end_time=max(span.started_ns, span.ended_ns),
            instrumentation_scope=_SCOPE,
        )

    def _content_event(self, content: Content, at_ns: int) -> Event:
        return Event(
            CONTENT_EVENT,
            {
                INPUT: self._redactor.messages(content.inputs),
                OUTPUT: self._redactor.messages(content.outputs),
                "tercet.content.retention_days": self._retention_days,
            },
            at_ns,
        )


def _otel_context(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.state]) if context.state else TraceState()
    return SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
        trace_state=state,
    )
