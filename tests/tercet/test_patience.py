"""Waits that end: after a time, or when what they wait for is cancelled by another."""

from __future__ import annotations

import asyncio

import pytest

from tercet.patience import GivenUpError, apart, within


async def never() -> None:
    await asyncio.Event().wait()


async def at_once() -> int:
    return 7


async def wrong() -> None:
    raise ValueError("a bug")


async def test_what_comes_in_time_is_given() -> None:
    assert await within(20, at_once()) == await apart(at_once()) == await apart(at_once(), 20) == 7
    for waiting in (within(20, wrong()), apart(wrong(), 20)):
        with pytest.raises(ValueError, match="a bug"):
            await waiting


async def test_what_does_not_come_in_time_is_ended() -> None:
    left = asyncio.Event()

    async def late() -> None:
        try:
            await never()
        finally:
            left.set()

    for waiting in (within(0.01, late()), apart(late(), 0.01)):
        with pytest.raises(asyncio.TimeoutError):
            await waiting
        await left.wait()
        left.clear()


@pytest.mark.parametrize(
    "waiting", [lambda: within(1000, never()), lambda: apart(never()), lambda: apart(never(), 1000)]
)
async def test_a_cancel_is_none_of_these(waiting) -> None:
    task = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_cancelled_by_another_is_told_from_a_cancel() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def await_it() -> None:
        await future

    asyncio.get_running_loop().call_soon(future.cancel)
    with pytest.raises(GivenUpError):
        await apart(await_it(), 1000)


async def test_a_cancel_that_comes_with_the_result_is_not_lost() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def await_it() -> None:
        await future

    task = asyncio.create_task(apart(await_it(), 1000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    future.set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
