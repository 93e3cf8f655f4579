"""The virtual counters: what who comes back is owed, and where the others are."""

from __future__ import annotations

import pytest

from scheduler.fairness import Share, level


def served(weight: float, *tokens: int) -> Share:
    share = Share(weight)
    for each in tokens:
        share.charge(each, weight)
    return share


def test_tokens_count_by_weight_and_come_off_as_they_were_charged() -> None:
    share = served(4.0, 100)
    assert share.served == 25.0
    share.charge(-100, 4.0)
    assert share.served == 0.0


def test_the_others_are_where_the_one_is_who_received_least() -> None:
    assert level([], None) == 0.0
    assert level([], served(1.0, 30)) == 30.0
    assert level([served(1.0, 30), served(2.0, 30)], served(1.0, 5)) == 15.0


def test_what_is_charged_and_still_to_come_is_not_received() -> None:
    share = served(2.0, 30, 400)
    share.put_ahead(400, 2.0)
    assert (share.served, share.received) == (215.0, 15.0)
    assert level([share, served(1.0, 100)], None) == 15.0
    # As it is computed.
    share.put_ahead(-300, 2.0)
    assert level([share], None) == pytest.approx(165.0)
    share.put_ahead(-100, 2.0)
    assert level([share], None) == 215.0


def test_who_comes_back_is_lifted_to_the_others_but_for_what_is_owed_at_most() -> None:
    late, early = served(2.0, 10), served(1.0, 500)
    late.come_back(100.0, 40.0)
    early.come_back(100.0, 40.0)
    assert (late.served, early.served) == (80.0, 500.0)
    # What is owed to one is as good as received: it is not owed again to who comes after it.
    assert level([late], None) == 100.0
    assert Share(1.0).begin(level([late], None), 0.0) == 100.0
