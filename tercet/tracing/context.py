"""The trace that a request is part of, as W3C's traceparent and tracestate have it. Knows no spans."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

# What is longer is dropped, as the specification has it.
MAX_STATE_CHARS = 512
# Later versions may have more behind a dash.
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace, whether the trace is recorded, and what others want to be passed on with it. Ids are not 0."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @property
    def trace_hex(self) -> str:
        """The trace's id as logs have it."""
        return f"{self.trace_id:032x}"


def read_context(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The context in the two headers; None without one, or if the first is not well formed. A malformed tracestate is
    left out."""
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    trace, span = int(trace_id, 16), int(span_id, 16)
    if not (trace and span):
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED), _state(tracestate))


def context_of(headers: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """The context in the headers of a call, names in lower case; None without exactly one traceparent."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value if isinstance(value, str) else "")
        elif name == TRACESTATE and isinstance(value, str):
            states.append(value)
    return read_context(parents[0].strip(), ",".join(states)) if len(parents) == 1 else None


def _state(text: str) -> str:
    if len(text) > MAX_STATE_CHARS:
        return ""
    members = [each.strip(" \t") for each in text.split(",")]
    return ",".join(members) if all(map(_MEMBER.fullmatch, members)) else ""
