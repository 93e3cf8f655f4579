"""A bounded queue that never blocks its putter."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.outbox import Outbox, OutboxClosedError


async def test_messages_come_in_order_and_what_is_in_it_outlives_the_close() -> None:
    outbox: Outbox[int] = Outbox(10)
    assert outbox.put(1)
    assert outbox.put(2)
    outbox.close()
    assert outbox.put(3)
    assert [await outbox.take(), await outbox.take()] == [1, 2]
    with pytest.raises(OutboxClosedError) as caught:
        await outbox.take()
    assert not caught.value.overflowed


async def test_a_taker_waits_for_the_next_message() -> None:
    outbox: Outbox[int] = Outbox(10)
    taker = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.put(5)
    assert await taker == 5


async def test_an_overflow_is_told_once_and_ends_it() -> None:
    outbox: Outbox[int] = Outbox(2)
    assert [outbox.put(number) for number in range(4)] == [True, True, False, True]
    with pytest.raises(OutboxClosedError) as caught:
        await outbox.take()
    assert caught.value.overflowed


async def test_the_bound_is_on_what_messages_weigh_and_what_is_taken_weighs_no_more() -> None:
    outbox: Outbox[int] = Outbox(10, lambda message: message)
    assert outbox.put(4)
    assert outbox.put(6)
    assert await outbox.take() == 4
    assert outbox.put(4)
    assert await outbox.take_all() == [6, 4]
    assert outbox.put(10)
    assert not outbox.put(1)


async def test_a_close_wakes_the_taker() -> None:
    outbox: Outbox[int] = Outbox(2)
    taker = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.close()
    with pytest.raises(OutboxClosedError):
        await taker
