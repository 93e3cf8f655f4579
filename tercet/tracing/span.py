"""A span that has ended, as plain data. Times are nanoseconds since the epoch."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from .context import TraceContext

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]


class Kind(enum.Enum):
    """What a span is of."""

    INTERNAL = "internal"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened in a span."""

    name: str
    at_ns: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """What somebody said."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a request said and what it was answered, as it is: only who exports it makes it fit to be seen."""

    inputs: tuple[Message, ...]
    outputs: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Work on a request. `context` is its own, `parent_id` 0 for the first of a trace. `error` is the type of what
    failed; None: nothing did. `links` are spans that it has to do with, but not as their child."""

    name: str
    context: TraceContext
    parent_id: int
    started_ns: int
    ended_ns: int
    attributes: Attributes
    kind: Kind = Kind.INTERNAL
    events: tuple[SpanEvent, ...] = ()
    links: tuple[TraceContext, ...] = ()
    error: str | None = None
    content: Content | None = None


# Upper bounds of the buckets of token counts, in tokens.
_BUCKETS = (0, 128, 512, 2048, 8192, 32768, 131072)


def token_bucket(count: int) -> str:
    """The bucket of a count of tokens: few values, by which traces can be grouped."""
    low = 0
    for high in _BUCKETS:
        if count <= high:
            return f"{low}-{high}" if high else "0"
        low = high + 1
    return f"{low}-"
