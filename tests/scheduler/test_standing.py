"""Who of several schedulers leads: any of them alone, never two that hear of each other, never nobody for long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.leadership import Leadership
from scheduler.peers import Peers
from scheduler.standing import Standing, leads


def test_alone_it_leads() -> None:
    assert leads(Standing(5), [])
    assert leads(Standing(5), [Standing(5)])
    assert not leads(Standing(5, leaving=True), [])


def test_who_started_first_leads_and_who_comes_later_waits() -> None:
    assert leads(Standing(1), [Standing(2)])
    assert not leads(Standing(2), [Standing(1)])
    assert not leads(Standing(1), [Standing(2, term=3)])


def test_of_two_that_lead_the_later_one_goes_on() -> None:
    assert leads(Standing(1, term=4), [Standing(2, term=3)])
    assert not leads(Standing(2, term=3), [Standing(1, term=4)])


def test_nobody_waits_for_one_that_leaves() -> None:
    assert leads(Standing(2), [Standing(1, leaving=True)])
    # But for what it still has.
    assert not leads(Standing(2), [Standing(1, term=3, leaving=True)])


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["look", "leave", "restart", "cut", "heal"]), st.integers(0, 2)), max_size=40
    )
)
def test_three_that_come_and_go(moves: list[tuple[str, int]]) -> None:
    """Each looks at what the others say; in the end, when all hear each other, one leads."""
    epochs = count(1)
    standings = {index: Standing(next(epochs)) for index in range(3)}
    cut: set[int] = set()

    def look(index: int) -> None:
        heard = [each for other, each in standings.items() if not {index, other} & cut or other == index]
        own = standings[index]
        if leads(own, heard) is not bool(own.term):
            standings[index] = replace(own, term=0 if own.term else next(epochs))

    for move, index in moves:
        if move == "look":
            look(index)
        elif move == "leave":
            standings[index] = replace(standings[index], leaving=True)
        elif move == "restart":
            standings[index] = Standing(next(epochs))
        else:
            (cut.add if move == "cut" else cut.discard)(index)
        if not cut and move == "look":
            newest = max(standings.values(), key=lambda each: each.term)
            assert not newest.term or newest.leaving or leads(newest, standings.values())
    cut.clear()
    for _ in range(4):
        for index in standings:
            look(index)
    leaders = [each for each in standings.values() if each.term]
    assert len(leaders) == (0 if all(each.leaving for each in standings.values()) else 1)


class Clock:
    """Stands still."""

    def __call__(self) -> float:
        return 0.0


@pytest.fixture
def epochs() -> Iterator[int]:
    return count(100)


async def test_one_without_others_leads_one_term_until_it_leaves(epochs: Iterator[int]) -> None:
    happened: list[str] = []

    async def lead(term: int) -> None:
        happened.append(f"leads {term}")
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("lets go")

    async def part() -> None:
        happened.append("parts")

    leadership = Leadership(Peers([], Clock()), 1, lambda: next(epochs), lead, part)
    said: list[Standing] = []

    async def listen() -> None:
        said.extend([each async for each in leadership.standings()])

    running, listening = asyncio.create_task(leadership.run()), asyncio.create_task(listen())
    for _ in range(20):
        await asyncio.sleep(0)
    assert happened == ["leads 100"]
    await leadership.leave()
    await asyncio.wait_for(listening, 20)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert happened == ["leads 100", "parts", "lets go"]
    assert [(each.term, each.leaving) for each in said if each.leaving] == [(100, True), (0, True)]


async def test_a_bug_of_whoever_leads_is_raised(epochs: Iterator[int]) -> None:
    async def lead(_: int) -> None:
        raise ValueError("a bug")

    async def part() -> None:
        return None

    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(Leadership(Peers([], Clock()), 1, lambda: next(epochs), lead, part).run(), 20)
