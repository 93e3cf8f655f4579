"""Spans on their way out: a bounded queue, and a thread that hands them over in batches.

Whoever puts a span never waits, and nothing that the collector does, or does not, reaches further than this thread.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from .span import Span

log = structlog.get_logger()

# A batch goes out when it is so large, or its first span so old. To make a message of it takes 2 ms of the interpreter,
# for which the work may wait.
BATCH_SPANS = 32
BATCH_SECONDS = 1.0
# After a batch that was not taken; each time twice as long.
PAUSE_SECONDS = (1.0, 30.0)
# Between two lines about spans that were dropped.
TELL_SECONDS = 60.0
# How long the end waits for what is left.
STOP_SECONDS = 2.0


class Sender(Protocol):
    """The way to a collector."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Hands spans over, within seconds; whether they were taken."""

    def close(self) -> None:
        """Ends a `send` that is under way. From any thread."""


class Exporting:
    """At most `max_waiting` spans wait; what is beyond, and what no collector takes, is dropped and counted."""

    def __init__(
        self,
        sender: Sender,
        max_waiting: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        batch_s: float = BATCH_SECONDS,
    ) -> None:
        """`clock` gives seconds; a batch goes out after `batch_s` of them at the latest."""
        self._sender = sender
        self._max_waiting = max_waiting
        self._clock = clock
        self._batch_s = batch_s
        self._waiting: deque[Span] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.num_dropped = 0
        self.num_sent = 0
        self._num_told = 0
        self._told_at = -TELL_SECONDS
        # Its lines are those of the process that it is part of.
        live = partial(contextvars.copy_context().run, self._live)
        self._thread = threading.Thread(target=live, name="traces", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far, by what became of them. From any thread."""
        return {"sent": self.num_sent, "dropped": self.num_dropped}

    def put(self, span: Span) -> None:
        """Takes a span, from any thread. Never waits."""
        if len(self._waiting) >= self._max_waiting:
            self.num_dropped += 1
            return
        self._waiting.append(span)
        if len(self._waiting) == BATCH_SPANS:
            self._wake.set()

    def stop(self, timeout_s: float = STOP_SECONDS) -> None:
        """Hands over what is left, for at most so many seconds."""
        until = self._clock() + timeout_s
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s * 0.75)
        if self._thread.is_alive():
            self._sender.close()
            self._thread.join(max(0.0, until - self._clock()))
        # What the thread has not come to.
        self.num_dropped += len(self._waiting)
        self._waiting.clear()
        self._tell(at_last=True)

    def _live(self) -> None:
        pause_s = PAUSE_SECONDS[0]
        while not self._stopping.is_set():
            self._wake.wait(self._batch_s)
            self._wake.clear()
            if self._send_all():
                pause_s = PAUSE_SECONDS[0]
            else:
                self._stopping.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_SECONDS[1])
            self._tell()
        self._send_all()
        self._sender.close()

    def _send_all(self) -> bool:
        """Sends what waits; False as soon as a batch is not taken."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_SPANS, len(self._waiting)))]
            try:
                taken = self._sender.send(batch)
            except Exception as error:
                # Only what it is called: a message may quote what it was about.
                log.error("traces_failed", problem=type(error).__name__)
                taken = False
            if not taken:
                self.num_dropped += len(batch)
                return False
            self.num_sent += len(batch)
        return True

    def _tell(self, *, at_last: bool = False) -> None:
        now = self._clock()
        lost = self.num_dropped - self._num_told
        if lost and (at_last or now - self._told_at >= TELL_SECONDS):
            self._told_at, self._num_told = now, self.num_dropped
            log.warning("spans_dropped", spans=lost, sent=self.num_sent, waiting=len(self._waiting))
