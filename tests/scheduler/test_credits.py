"""The ledger against the arithmetic it stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.credits import CreditLedger, blocks_for
from scheduler.events import BlockCounts


def test_blocks_for() -> None:
    assert [blocks_for(tokens, 4) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_what_is_reserved_and_not_yet_held_is_not_available() -> None:
    ledger = CreditLedger(10, 4)
    ledger.reserve(1, 13)
    assert ledger.available == 6
    ledger.report(BlockCounts(free=8, cached=0, used=2))
    ledger.hold(1, 8)
    assert ledger.available == 6
    ledger.reserve(1, 9)
    assert ledger.available == 7
    ledger.report(BlockCounts(free=8, cached=2, used=0))
    ledger.forget(1)
    assert ledger.available == 10
    assert not ledger.check()


def test_cached_blocks_count_as_available_and_a_hit_costs_what_it_takes() -> None:
    ledger = CreditLedger(10, 4)
    ledger.report(BlockCounts(free=4, cached=6, used=0))
    ledger.reserve(1, 16)
    assert ledger.available == 6
    # Two blocks were found in the cache, one was computed.
    ledger.report(BlockCounts(free=3, cached=4, used=3))
    ledger.hold(1, 12)
    assert ledger.available == 6


def test_a_pool_that_does_not_add_up_is_reported() -> None:
    ledger = CreditLedger(10, 4)
    ledger.report(BlockCounts(free=4, cached=0, used=4))
    assert "does not add up" in ledger.check()[0]


@given(st.lists(st.tuples(st.sampled_from(["reserve", "hold", "forget"]), st.integers(0, 4), st.integers(0, 60))))
def test_the_running_sum_is_the_sum_of_the_accounts(moves: list[tuple[str, int, int]]) -> None:
    ledger = CreditLedger(1000, 4)
    accounts: dict[int, tuple[int, int]] = {}
    for move, key, tokens in moves:
        if move == "reserve":
            ledger.reserve(key, tokens)
            held = accounts.get(key, (0, 0))[1]
            accounts[key] = (max(-(-tokens // 4), held), held)
        elif key in accounts and move == "hold":
            ledger.hold(key, tokens)
            reserved, held = accounts[key]
            held = max(held, -(-tokens // 4))
            accounts[key] = (max(reserved, held), held)
        elif key in accounts:
            ledger.forget(key)
            del accounts[key]
        assert not ledger.check()
        assert len(ledger) == len(accounts)
        assert ledger.available == 1000 - sum(reserved - held for reserved, held in accounts.values())
        for each, (reserved, held) in accounts.items():
            assert (ledger.reserved(each), ledger.held(each)) == (reserved, held)
