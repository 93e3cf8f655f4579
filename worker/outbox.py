"""Events on their way to the scheduler. They leave before the executor waits, not while the device waits for it:
whoever they wake wants the interpreter, too."""

from __future__ import annotations

from collections.abc import Callable

from .messages import Event

Emit = Callable[[Event], None]


class Outbox:
    """For one thread. What is put in leaves in order with the next `flush`, or is dropped where nobody listens."""

    def __init__(self) -> None:
        self._emit: Emit | None = None
        self._events: list[Event] = []

    def open(self, emit: Emit) -> None:
        """From now on `emit` gets the events; what was there goes to the one before."""
        self.flush()
        self._emit = emit

    def close(self) -> None:
        """Nobody listens any more; what was there still leaves."""
        self.flush()
        self._emit = None

    def is_for(self, emit: Emit) -> bool:
        """Whether `emit` gets the events."""
        # Not `is`: a bound method is a new object each time it is taken.
        return self._emit == emit

    def put(self, event: Event | None) -> None:
        """Takes an event. None is none."""
        if event is not None and self._emit is not None:
            self._events.append(event)

    def flush(self) -> None:
        """Lets all events go."""
        events, self._events = self._events, []
        for event in events:
            assert self._emit is not None
            self._emit(event)
