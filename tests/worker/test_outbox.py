"""Events leave in order, to whoever listened when they came."""

from __future__ import annotations

from worker.messages import Draining, Event, KvEvents
from worker.outbox import Outbox

FIRST, SECOND = KvEvents(True, (), (1,)), KvEvents(False, (), (2,))


def test_what_is_put_in_leaves_with_the_next_flush() -> None:
    outbox, heard = Outbox(), list[Event]()
    outbox.put(FIRST)
    outbox.open(heard.append)
    outbox.put(SECOND)
    outbox.put(None)
    outbox.put(Draining())
    assert heard == []
    outbox.flush()
    outbox.flush()
    # What came before somebody listened is nobody's.
    assert heard == [SECOND, Draining()]


def test_who_listened_before_gets_what_was_there() -> None:
    outbox, before, after = Outbox(), list[Event](), list[Event]()
    outbox.open(before.append)
    assert outbox.is_for(before.append)
    outbox.put(FIRST)
    outbox.open(after.append)
    assert not outbox.is_for(before.append)
    outbox.put(SECOND)
    outbox.close()
    outbox.put(FIRST)
    outbox.flush()
    assert (before, after) == ([FIRST], [SECOND])


def test_what_a_listener_puts_in_leaves_later() -> None:
    outbox, heard = Outbox(), list[Event]()

    def emit(event: Event) -> None:
        heard.append(event)
        if event is FIRST:
            outbox.put(SECOND)

    outbox.open(emit)
    outbox.put(FIRST)
    outbox.flush()
    assert heard == [FIRST]
    outbox.flush()
    assert heard == [FIRST, SECOND]
