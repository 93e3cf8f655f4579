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


def test_a_fork_holds_the_full_shared_blocks_and_owes_a_copy_of_the_partial_one() -> None:
    ledger = CreditLedger(10, 4)
    ledger.reserve(1, 7)
    ledger.open_fork(2, 6)
    ledger.reserve(2, 7)
    # The prompt of 6, one more token each: two blocks, and a copy of the second.
    assert (ledger.held(2), ledger.reserved(2), ledger.available) == (1, 2, 7)
    ledger.report(BlockCounts(free=8, cached=0, used=2))
    ledger.hold(1, 6)
    assert ledger.available == 7
    # Both have written: whoever came first took the copy.
    ledger.report(BlockCounts(free=7, cached=0, used=3))
    ledger.hold(1, 7)
    ledger.hold(2, 7)
    assert ledger.available == 7
    assert not ledger.check()


def test_a_fork_of_full_blocks_owes_only_what_it_grows_by() -> None:
    ledger = CreditLedger(10, 4)
    ledger.open_fork(2, 8)
    assert ledger.available == 10
    ledger.reserve(2, 9)
    assert ledger.available == 9


@given(
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40),
)
def test_credits_of_a_group_bound_what_it_takes(
    block_size: int, prompt: int, num_forks: int, moves: list[tuple[int, bool]]
) -> None:
    """A pool that shares and copies as the worker does never lacks a block that the ledger has promised."""
    limit = prompt + 5
    ledger = CreditLedger(1000, block_size)
    partial = prompt % block_size
    lengths = dict.fromkeys(range(1 + num_forks), prompt)
    sharing = set(lengths) if partial else set()
    used = blocks_for(prompt, block_size)
    ledger.reserve(0, prompt)
    for key in range(1, 1 + num_forks):
        ledger.open_fork(key, prompt)
    for key in lengths:
        ledger.reserve(key, limit)
    ledger.report(BlockCounts(1000 - used, 0, used))
    ledger.hold(0, prompt)
    for key, writes in moves:
        if key not in lengths or lengths[key] == limit:
            continue
        promised = sum(ledger.reserved(each) - ledger.held(each) for each in lengths)
        # At worst all of them now write as far as they may.
        copies = max(0, len(sharing) - 1)
        growth = sum(blocks_for(limit, block_size) - blocks_for(length, block_size) for length in lengths.values())
        assert copies + growth <= promised
        if writes:
            if key in sharing:
                used += len(sharing) > 1
                sharing.remove(key)
            used += blocks_for(lengths[key] + 1, block_size) - blocks_for(lengths[key], block_size)
            lengths[key] += 1
            ledger.report(BlockCounts(1000 - used, 0, used))
            ledger.hold(key, lengths[key])
        else:
            del lengths[key]
            sharing.discard(key)
            ledger.forget(key)
        assert not ledger.check()


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


def test_reserving_many_is_reserving_each() -> None:
    one, many = CreditLedger(100, 4), CreditLedger(100, 4)
    for ledger in (one, many):
        ledger.reserve(1, 9)
        ledger.hold(1, 9)
        ledger.open_fork(2, 9)
    wanted = {1: 5, 2: 10, 3: 0, 4: 17}
    for key, tokens in wanted.items():
        one.reserve(key, tokens)
    many.reserve_each(wanted, wanted.values())
    for key in wanted:
        assert (many.reserved(key), many.held(key)) == (one.reserved(key), one.held(key))
    assert many.available == one.available
    assert not many.check()
