"""Commands keep their order and are looked at before they are obeyed."""

from __future__ import annotations

import threading

from worker.mailbox import Mailbox
from worker.messages import Plan, Shutdown


def test_the_first_stays_until_it_is_taken_out() -> None:
    mailbox = Mailbox()
    assert mailbox.first() is None
    mailbox.put(Plan(1, 1))
    mailbox.put(Shutdown())
    assert (mailbox.first(), mailbox.first(), len(mailbox)) == (Plan(1, 1), Plan(1, 1), 2)
    mailbox.take()
    assert (mailbox.first(), len(mailbox)) == (Shutdown(), 1)


def test_who_waits_is_woken() -> None:
    mailbox = Mailbox()
    assert not mailbox.wait(0.01)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(mailbox.wait(None)))
    thread.start()
    mailbox.put(Shutdown())
    thread.join(20)
    assert found == [True]
    assert mailbox.wait(None)
