"""A group counts each block that its members share once, whoever leaves first."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from worker import _core
from worker.sequence_group import SequenceGroup

S = 4


@settings(max_examples=60, deadline=None)
@given(prompt=st.integers(0, 14), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.randoms())
def test_what_the_members_count_adds_up_to_what_was_in_use(prompt: int, lengths: list[int], seed: object) -> None:
    pool = _core.BlockPool(64, S)
    leader = _core.BlockTable(pool)
    leader.reserve(prompt)
    leader.commit(list(range(prompt)))
    tables = [leader, *(leader.fork() for _ in lengths[1:])]
    group = SequenceGroup()
    for key, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        group.join(key, table)
        table.reserve(prompt + length)
        table.commit([100 * key + i for i in range(length)])
    in_use = pool.num_used
    order = list(range(len(lengths)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    left = [group.leave(key) for key in order]
    assert left == [(freed, freed) for _, freed in left]
    assert sum(used for used, _ in left) == in_use
    assert pool.num_used == 0


def test_a_block_of_somebody_else_is_counted_and_not_freed() -> None:
    pool = _core.BlockPool(8, S)
    table = _core.BlockTable(pool)
    table.reserve(2 * S)
    table.commit(list(range(2 * S)))
    other = table.fork()
    group = SequenceGroup()
    group.join(1, table)
    assert group.leave(1) == (2, 0)
    assert other.release() == 2


def test_it_is_gone_with_its_last_member() -> None:
    group = SequenceGroup()
    group.join(1, _core.BlockTable(_core.BlockPool(8, S)))
    there = weakref.ref(group)
    gc.disable()
    try:
        del group
        assert there() is None
    finally:
        gc.enable()
