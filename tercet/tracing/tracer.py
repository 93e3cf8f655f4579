"""The tracer of a process: which requests are traced, and where their spans go."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from tercet.errors import ConfigError

from .context import TraceContext
from .exporting import Exporting
from .redactor import BEYOND_CHARS
from .sampler import is_sampled
from .settings import TracesSettings
from .span import Attributes, Span


class Taker(Protocol):
    """What takes spans."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far, by what became of them."""

    def put(self, span: Span) -> None:
        """Takes a span. Never waits."""

    def stop(self) -> None:
        """Waits a little for what is left."""


class Tracer:
    """Without a `taker` nothing is traced. `ratio` is of requests that come with no context; what others have decided
    holds. `content_chars`: so much of each text of traced requests is wanted. `draw` gives so many random bits."""

    def __init__(
        self,
        taker: Taker | None = None,
        ratio: float = 1.0,
        *,
        content_chars: int = 0,
        draw: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._taker = taker
        self._ratio = ratio
        self.content_chars = content_chars
        self._draw = draw

    def begin(self, parent: TraceContext | None) -> TraceContext | None:
        """The context of a span to be recorded, below `parent` if there is one; None: it is not to be recorded."""
        if self._taker is None:
            return None
        if parent is not None:
            return self.child(parent) if parent.sampled else None
        trace_id = self._new_id(128)
        return TraceContext(trace_id, self._new_id(64), True) if is_sampled(trace_id, self._ratio) else None

    def child(self, parent: TraceContext) -> TraceContext:
        """The context of another span of the trace."""
        return TraceContext(parent.trace_id, self._new_id(64), parent.sampled, parent.state)

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far, by what became of them; empty where nothing is traced."""
        return {} if self._taker is None else self._taker.counts

    def put(self, span: Span) -> None:
        """A span has ended."""
        if self._taker is not None:
            self._taker.put(span)

    async def stop(self) -> None:
        """Hands over what is left, for a bounded time."""
        if self._taker is not None:
            await asyncio.to_thread(self._taker.stop)

    def _new_id(self, bits: int) -> int:
        # 0 is no id.
        return self._draw(bits) or 1


def open_tracer(settings: TracesSettings, service: str, instance: str, attributes: Attributes | None = None) -> Tracer:
    """The tracer of a service; `attributes` are those of all of its spans. Raises ConfigError if the extra is missing
    that it takes, or the endpoint is of no use."""
    if not settings.endpoint:
        return Tracer()
    try:
        # Only who has an endpoint needs what this imports.
        from .otlp import OtlpSender
    except ImportError as error:
        problem = f"needs OpenTelemetry, of which {error.name} is missing: pip install 'tercet[traces]'"
        raise ConfigError("traces.endpoint", problem) from error
    sender = OtlpSender(settings, service, instance, attributes or {})
    return Tracer(
        Exporting(sender, settings.max_waiting_spans),
        settings.sample_ratio,
        content_chars=settings.content_max_chars + BEYOND_CHARS if settings.content == "sampled" else 0,
    )
