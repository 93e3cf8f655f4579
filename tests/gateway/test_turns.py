"""Places that tenants take turns at."""

from __future__ import annotations

import asyncio
import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.turns import Turns

from .guarded_gateway import until


class Work:
    """Work that waits for a place, and then until it is told to end."""

    def __init__(self, turns: Turns, tenant: str, order: list[str]) -> None:
        self.at_work = False
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(turns, tenant, order))

    async def _run(self, turns: Turns, tenant: str, order: list[str]) -> None:
        async with turns.place(tenant):
            order.append(tenant)
            self.at_work = True
            try:
                await self._end.wait()
            finally:
                self.at_work = False

    async def end(self) -> None:
        self._end.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_flood_lets_others_through() -> None:
    turns, order = Turns(1), []
    flood = [Work(turns, "flood", order) for _ in range(20)]
    await settle()
    others = [Work(turns, name, order) for name in ("a", "b", "a")]
    await settle()
    for work in [flood[0], flood[1], others[0], others[1], flood[2], others[2], flood[3]]:
        await work.end()
    # One of the flood's was there, and one more had its turn: then each in turn.
    assert order[:8] == ["flood", "flood", "a", "b", "flood", "a", "flood", "flood"]
    for work in flood[4:]:
        await work.end()


async def test_as_many_as_there_are_places_at_a_time() -> None:
    turns, order = Turns(2), []
    works = [Work(turns, "a", order) for _ in range(5)]
    await settle()
    assert [work.at_work for work in works] == [True, True, False, False, False]
    await works[1].end()
    await settle()
    assert [work.at_work for work in works] == [True, False, True, False, False]
    for work in works:
        await work.end()
    # All places are free again.
    again = [Work(turns, "a", order) for _ in range(2)]
    await settle()
    assert all(work.at_work for work in again)
    for work in again:
        await work.end()


async def test_a_place_given_to_one_who_gives_up_goes_on() -> None:
    turns, order = Turns(1), []
    first, second, third = (Work(turns, name, order) for name in ("a", "b", "c"))
    await settle()
    # In one moment: the place is handed to the second, who is cancelled before it knows.
    first._end.set()
    await asyncio.sleep(0)
    second.task.cancel()
    await until(lambda: third.at_work)
    assert order[0] == "a"
    await third.end()
    await first.task


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["start", "end", "cancel", "step"]), st.integers(0, 9)), max_size=60))
def test_no_place_is_lost_or_made(story: list[tuple[str, int]]) -> None:
    async def play() -> None:
        turns, order = Turns(2), []
        works: list[Work] = []
        for action, number in story:
            if action == "start":
                works.append(Work(turns, f"t{number % 3}", order))
            elif works and action == "end":
                works[number % len(works)]._end.set()
            elif works and action == "cancel":
                works[number % len(works)].task.cancel()
            else:
                await asyncio.sleep(0)
            assert sum(work.at_work for work in works) <= 2
        await settle()
        # Nobody waits while there is a place.
        left = [work for work in works if not work.task.done()]
        assert sum(work.at_work for work in left) == min(2, len(left))
        for work in left:
            await work.cancel()
        fresh = [Work(turns, "x", order) for _ in range(3)]
        await settle()
        assert [work.at_work for work in fresh] == [True, True, False]
        for work in fresh:
            await work.cancel()

    asyncio.run(play())
