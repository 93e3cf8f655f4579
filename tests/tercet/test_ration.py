"""Work that is done a few pieces in a turn of the event loop."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.ration import Ration


@given(limit=st.integers(1, 5), batches=st.lists(st.integers(0, 12), max_size=6))
def test_no_turn_has_more_than_its_ration_and_all_is_done_in_order(limit: int, batches: list[int]) -> None:
    turn = 0
    done: list[tuple[int, int]] = []

    def note(number: int) -> None:
        done.append((turn, number))

    async def main() -> None:
        nonlocal turn
        ration, number = Ration(limit), 0
        for count in batches:
            for _ in range(count):
                number += 1
                ration.do(partial(note, number))
            await asyncio.sleep(0)
            turn += 1
        while len(ration):
            await asyncio.sleep(0)
            turn += 1

    asyncio.run(main())
    assert [number for _, number in done] == list(range(1, sum(batches) + 1))
    # Somebody who wants each turn waits for no more than two rations: what is left of one turn, and that of the next.
    assert all(sum(at == each for at, _ in done) <= 2 * limit for each in range(turn + 1))
    # Nor does anything wait for longer than it has to.
    assert turn <= len(batches) + -(-sum(batches) // limit)


async def test_what_is_within_the_ration_does_not_wait() -> None:
    ration, done = Ration(2), list[int]()
    for number in range(3):
        ration.do(partial(done.append, number))
    assert (done, len(ration)) == ([0, 1], 1)
    await asyncio.sleep(0)
    assert (done, len(ration)) == ([0, 1, 2], 0)
    # And after a quiet turn it is whole again.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for number in range(3, 5):
        ration.do(partial(done.append, number))
    assert done == [0, 1, 2, 3, 4]


async def test_work_that_raises_holds_up_nobody() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    ration, done = Ration(1), list[int]()

    def fail() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        ration.do(fail)
    ration.do(fail)
    ration.do(lambda: done.append(1))
    for _ in range(4):
        await asyncio.sleep(0)
    assert done == [1]
    assert [type(each) for each in told] == [ValueError]


async def test_what_waits_can_be_done_at_the_end() -> None:
    ration, done = Ration(1), list[int]()
    for number in range(5):
        ration.do(partial(done.append, number))
    ration.finish()
    assert done == list(range(5))
    await asyncio.sleep(0)
    assert done == list(range(5))
