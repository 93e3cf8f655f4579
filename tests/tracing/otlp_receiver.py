"""A collector in this process: keeps every span that comes, and every byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

KINDS = trace_pb2.Span.SpanKind
ERROR = trace_pb2.Status.STATUS_CODE_ERROR


@dataclass(frozen=True)
class Received:
    """A span as it came."""

    service: str
    resource: dict[str, Any]
    span: trace_pb2.Span

    @property
    def name(self) -> str:
        return str(self.span.name)

    @property
    def trace_id(self) -> str:
        return bytes(self.span.trace_id).hex()

    @property
    def id(self) -> str:
        return bytes(self.span.span_id).hex()

    @property
    def parent(self) -> str:
        return bytes(self.span.parent_span_id).hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.span.attributes)

    @property
    def failed(self) -> bool:
        return bool(self.span.status.code == ERROR)


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Listens on a free port of loopback; `delay_s` is how long each answer takes."""

    def __init__(self, delay_s: float = 0.0, credentials: grpc.ServerCredentials | None = None) -> None:
        self.delay_s = delay_s
        self.bytes = b""
        self.num_calls = 0
        self._spans: list[Received] = []
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        address = "127.0.0.1:0"
        self._secure = credentials is not None
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http{'s' if self._secure else ''}://127.0.0.1:{self.port}"

    def Export(self, request: Any, _context: Any) -> Any:
        """One batch."""
        self.num_calls += 1
        time.sleep(self.delay_s)
        with self._lock:
            self.bytes += request.SerializeToString()
            for part in request.resource_spans:
                resource = values(part.resource.attributes)
                for scope in part.scope_spans:
                    self._spans += (Received(resource["service.name"], resource, span) for span in scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, wanted: Callable[[Received], bool] = lambda _: True) -> list[Received]:
        """Those that have come."""
        with self._lock:
            return [each for each in self._spans if wanted(each)]

    def trace(self, trace_id: str) -> list[Received]:
        """The spans of a trace, by their beginning."""
        return sorted(
            self.spans(lambda each: each.trace_id == trace_id), key=lambda each: each.span.start_time_unix_nano
        )

    def stop(self) -> None:
        self._server.stop(0).wait()


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as plain values."""
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found
