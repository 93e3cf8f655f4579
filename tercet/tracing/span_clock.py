"""The time of a span: that of the wall when it began, and from there on by a clock that nobody sets back."""

from __future__ import annotations

import time


class SpanClock:
    """Gives nanoseconds since the epoch. One for each request: what is set meanwhile changes no duration."""

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Now."""
        return self._offset_ns + time.monotonic_ns()

    def at_ns(self, monotonic_s: float) -> int:
        """What `time.monotonic` had as so many seconds."""
        return self._offset_ns + round(monotonic_s * 1e9)
