"""Who gives way, and how."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.preemption import Holder, choose_returning, choose_victims, choose_yielding, first_to_go, prefer_swap


def holder(key: int, **changes: Any) -> Holder:
    values: dict[str, Any] = {
        "sequence_ids": (key,),
        "rank": 0,
        "whose": (f"of rank {changes.get('rank', 0)}", ""),
        "priority": 0,
        "claim": (0.0, key),
        "beyond_share": False,
        "shielded": False,
        "lost_tokens": 10,
        "blocks": 1,
        "decoding": True,
    }
    return Holder(**{**values, **changes})


def victims(*holders: Holder, shortage: int = 1) -> list[int]:
    return [each.sequence_ids[0] for each in choose_victims(holders, shortage)]


def test_of_equals_the_latest_gives_way() -> None:
    assert victims(holder(2), holder(1), holder(3)) == [3]
    assert victims(holder(2), holder(1), holder(3), shortage=2) == [3, 2]


def test_the_higher_class_gives_way_first() -> None:
    assert victims(holder(1), holder(2, rank=2, lost_tokens=900), holder(3, rank=1), holder(4)) == [2]


def test_within_a_class_the_higher_priority_number_gives_way_first() -> None:
    assert victims(holder(1), holder(2, priority=5, lost_tokens=900), holder(3, priority=-5)) == [2]
    assert victims(holder(1), holder(2, priority=5), holder(3, rank=1, priority=-5)) == [3]


def test_priorities_are_among_a_tenants_own_of_the_class() -> None:
    a, b = (("interactive", tenant) for tenant in "ab")
    # Whoever says that all of its own matter gives way as often as before.
    for priority in (-100, 0, 100):
        mine = [holder(key, whose=a, priority=priority) for key in (1, 3, 5, 7)]
        assert victims(*mine, *(holder(key, whose=b) for key in (2, 4, 6)), shortage=6) == [7, 6, 5, 4, 3, 2]
    # Of the two turns that it has it is the least that goes first.
    least = holder(3, whose=a, priority=5, lost_tokens=900)
    others = holder(4, whose=b), holder(5, whose=a), holder(6, whose=b, lost_tokens=20)
    assert victims(holder(1, whose=b), least, *others, shortage=3) == [3, 4, 6]
    # What another class of it is asked for is its own affair.
    batch = holder(2, rank=2, whose=("batch", "a"), priority=-5), holder(3, rank=2, whose=("batch", "b"), priority=5)
    assert victims(holder(1, whose=a), *batch) == [3]
    assert victims(holder(1, whose=a), *(each._replace(priority=-each.priority) for each in batch)) == [3]


def test_then_the_one_that_loses_least() -> None:
    assert victims(holder(1), holder(2, lost_tokens=3), holder(3, lost_tokens=4)) == [2]


def test_who_is_beyond_a_share_of_blocks_gives_way_first_but_for_the_shielded() -> None:
    beyond = holder(2, beyond_share=True, lost_tokens=900)
    assert victims(holder(1), beyond, holder(3, rank=2)) == [2]
    assert victims(holder(1), holder(2, beyond_share=True, shielded=True), holder(3)) == [3]
    assert choose_returning([holder(1), beyond, holder(3, rank=2)], 2) == (beyond,)
    assert choose_returning([holder(1), beyond, holder(3, rank=2)], 3) is None
    assert choose_returning([holder(2, beyond_share=True, shielded=True)], 1) is None


def test_of_who_has_the_oldest_claim_the_most_urgent_stays_whatever_its_class() -> None:
    assert victims(holder(1, rank=2), holder(2), shortage=9) == [2]
    assert victims(holder(1), holder(2, priority=-1), holder(3), shortage=9) == [3, 1]
    # Not a more urgent one of others.
    assert victims(holder(1), holder(2, priority=-1, whose=("interactive", "b")), shortage=9) == [2]
    assert victims(holder(1), holder(2, priority=-1, rank=1), shortage=9) == [2]
    assert victims(holder(1), shortage=9) == []
    assert victims(shortage=9) == []


def test_one_that_has_just_lost_its_work_goes_only_if_nothing_else_helps() -> None:
    shielded = holder(3, rank=2, shielded=True)
    assert victims(holder(1), holder(2), shielded) == [2]
    assert victims(holder(1), holder(2), shielded, shortage=2) == [2, 3]


def test_a_group_goes_as_one() -> None:
    group = holder(5, sequence_ids=(5, 6, 7), blocks=4, rank=1)
    (victim,) = choose_victims([holder(1), group, holder(8)], 3)
    assert victim.sequence_ids == (5, 6, 7)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-3, 3), st.booleans(), st.integers(0, 9), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_no_victim_too_many_and_never_all(rows: list[tuple[int, int, bool, int, int]], shortage: int) -> None:
    holders = [
        holder(key, rank=rank, priority=priority, shielded=shielded, lost_tokens=lost, blocks=blocks)
        for key, (rank, priority, shielded, lost, blocks) in enumerate(rows)
    ]
    chosen = choose_victims(holders, shortage)
    first = min((each for each in holders if each.rank == holders[0].rank), key=lambda each: each.urgency)
    assert first not in chosen
    kept = [each for each in holders if each not in chosen and each is not first]
    # Without the last one it would not have been enough; if somebody stays, it is.
    assert sum(each.blocks for each in chosen[:-1]) < shortage
    assert not kept or sum(each.blocks for each in chosen) >= shortage
    if any(each.shielded for each in chosen):
        assert all(each.shielded for each in kept)
    for mine, other in ((mine, other) for mine in chosen for other in kept if mine.shielded == other.shielded):
        assert (mine.rank, mine.priority, -mine.lost_tokens) >= (other.rank, other.priority, -other.lost_tokens)


def yielding(*holders: Holder, slots: int = 1, blocks: int = 0, rank: int = 0) -> list[int] | None:
    """Who makes room for one of that rank, whose claim is older than those of holders from 10 on."""
    chosen = choose_yielding(first_to_go(holders), rank, (0.0, 10), slots, blocks)
    return None if chosen is None else [each.sequence_ids[0] for each in chosen]


def low(key: int, **changes: Any) -> Holder:
    """One that makes room."""
    return holder(key, **{"rank": 2, **changes})


def test_a_higher_rank_makes_room_for_a_lower_one() -> None:
    assert yielding(low(11), low(12), low(13)) == [13]
    assert yielding(low(11), low(12, rank=1)) == [11]
    assert yielding(low(11), low(12), slots=2) == [12, 11]
    assert yielding(low(11), slots=0) == []
    # Each gives its blocks, and the one that it kept to grow by.
    assert yielding(low(11, blocks=3), low(12), slots=0, blocks=3) == [12, 11]
    assert yielding(low(11, blocks=3), low(12), slots=0, blocks=2) == [12]
    group = low(11, sequence_ids=(11, 12, 13))
    assert yielding(group, slots=3) == [11]


def test_who_is_as_important_more_urgent_or_shielded_stays() -> None:
    assert yielding(low(11, rank=0)) is None
    assert yielding(low(11), rank=2) is None
    assert yielding(low(9)) is None
    assert yielding(low(11, shielded=True)) is None
    # Nobody loses anything where that is not enough.
    assert yielding(low(11), low(12, shielded=True), slots=2) is None


def test_blocks_move_to_host_memory_where_that_is_cheaper() -> None:
    def swapped(**changes: Any) -> bool:
        values: dict[str, Any] = {
            "decoding": True,
            "num_blocks": 10,
            "free_host_blocks": 10,
            "swap_block_s": 0.001,
            "recompute_s": 0.021,
        }
        return prefer_swap(**{**values, **changes})

    assert swapped()
    assert not swapped(recompute_s=0.019)
    assert not swapped(recompute_s=None)
    # Less than a report can tell is not known either, however cheap the move.
    assert not swapped(recompute_s=9e-7, swap_block_s=1e-9)
    assert swapped(recompute_s=1e-6, swap_block_s=1e-9)
    assert not swapped(decoding=False)
    assert not swapped(free_host_blocks=9)
    assert not swapped(num_blocks=0)
