"""What the recorder keeps in memory: no token, and the same in a dump as the value itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.actions import NewSequence
from scheduler.events import AddressesChanged, BlockCounts, Ended, EndReason, KvChanged, Submitted, WorkerAttached
from scheduler.plan_log.values import encode, kept
from scheduler.simulator.small import GREEDY, submission, worker_info
from tercet.errors import EngineFaultError

# A number that is no length of anything here.
TOKEN = 9173
COUNTS = BlockCounts(1, 2, 3)

VALUES = [
    Submitted(1, submission(7, (TOKEN, TOKEN, 1), 5, prefix_salt=b"salt", stop_token_ids=(TOKEN,), n=2)),
    NewSequence(3, (TOKEN,) * 4, 12, (TOKEN, TOKEN), GREEDY, b"salt", ((4, 77),)),
    replace(GREEDY, penalties=b"salt"),
    Ended(3, EndReason.STOP, TOKEN, None, 2, 1),
    Ended(3, EndReason.FAILED, 0, EngineFaultError("it says TOKEN"), 2, 1),
    KvChanged(1, True, (TOKEN,), (TOKEN, TOKEN)),
    AddressesChanged(("host:1", "host:2")),
    WorkerAttached(1, "host:1", worker_info()),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_kept_value_is_written_as_the_value_and_has_no_token(value: Any) -> None:
    assert encode(kept(value)) == encode(value)
    assert str(TOKEN) not in str(kept(value))
    assert "salt" not in str(kept(value)).replace("prefix_salt", "")


def test_what_hides_nothing_is_kept_as_it_is() -> None:
    assert kept(VALUES[-1]) is VALUES[-1]
    assert kept((1, COUNTS)) == (1, COUNTS)
    # It could have penalties, but has none.
    assert kept(GREEDY) is GREEDY
