"""When calls are made again: the decision alone, then both clients at a gateway that fails as told."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet import errors
from tercet.client import AsyncClient, Client, Retry
from tercet.client.retries import Tries
from tercet.ports import free_ports

FULL = errors.QueueFullError("full", retry_after_s=2.0)
FINAL = errors.QueueFullError("full")
LOST = errors.GatewayLostError("lost")
# Without a draw waits are what was told.
STEADY = Retry(attempts=3, first_s=0.5, longest_s=8.0, draw=lambda: 0.0)


@pytest.mark.parametrize(
    ("num_made", "error", "left_s", "repeatable", "wait_s"),
    [
        (1, FULL, None, True, 2.0),
        (2, FULL, None, False, 2.0),
        (3, FULL, None, True, None),
        (1, FULL, 2.5, True, 2.0),
        (1, FULL, 2.0, True, None),
        (1, errors.QueueFullError("full", retry_after_s=0.0), None, True, 0.0),
        (1, errors.QueueFullError("full", retry_after_s=8.5), None, True, None),
        (1, FINAL, None, True, None),
        (1, LOST, None, True, 0.5),
        (2, LOST, None, True, 1.0),
        (1, LOST, None, False, None),
        (1, LOST, 0.5, True, None),
        (1, errors.GatewayLostError("is none", metadata={"code": "UNIMPLEMENTED"}), None, True, None),
        (1, errors.EngineFaultError("bug"), None, True, None),
        (1, errors.DeadlineError("late"), None, True, None),
        (1, errors.RequestCancelledError("gone"), None, True, None),
        (1, errors.InvalidFieldError("wrong", field="prompt"), None, True, None),
        (1, errors.WorkerLostError("begun"), None, True, None),
    ],
)
def test_when_to_ask_again(num_made, error, left_s, repeatable, wait_s):
    assert STEADY.wait_s(num_made, error, left_s, repeatable=repeatable) == wait_s


ANY_ERROR = st.builds(
    lambda kind, retry_after_s: kind("x", retry_after_s=retry_after_s),
    st.sampled_from(sorted(errors.request_error_types().values(), key=lambda kind: kind.reason)),
    st.none() | st.floats(0, 100),
)


@given(
    st.integers(1, 6),
    st.integers(1, 2000),
    ANY_ERROR,
    st.none() | st.floats(-1, 100),
    st.booleans(),
    st.floats(0, 1),
)
def test_a_wait_is_never_too_short_nor_beyond_what_was_said(attempts, num_made, error, left_s, repeatable, drawn):
    retry = Retry(attempts=attempts, longest_s=30.0, draw=lambda: drawn)
    wait_s = retry.wait_s(num_made, error, left_s, repeatable=repeatable)
    if wait_s is None:
        return
    assert num_made < attempts
    assert left_s is None or wait_s < left_s
    if error.retry_after_s is None:
        assert isinstance(error, errors.GatewayLostError)
        assert repeatable
    else:
        assert error.retry_after_s <= wait_s <= 1.5 * error.retry_after_s <= 45.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0}, {"first_s": 0}, {"first_s": math.nan}, {"longest_s": math.inf}, {"longest_s": math.nan},
        {"first_s": 2.0, "longest_s": 1.0},
    ],
)  # fmt: skip
def test_what_is_no_retry_is_refused(wrong):
    with pytest.raises(ValueError, match=r"attempts must|first_s and longest_s must"):
        Retry(**wrong)


def test_attempts_share_the_time_of_their_call():
    now = 100.0
    tries = Tries(STEADY, 10.0, repeatable=True, clock=lambda: now)
    assert tries.begin() == 10.0
    now = 103.0
    assert tries.wait_s(FULL) == 2.0
    now = 105.0
    assert tries.begin() == 5.0
    now = 108.5
    with pytest.raises(errors.QueueFullError):
        tries.wait_s(FULL)
    assert Tries(STEADY, None, repeatable=True).begin() is None


def test_what_has_begun_is_over_and_nothing_is_asked_again_by_itself():
    begun = Tries(STEADY, None, repeatable=True)
    begun.begin()
    begun.note_begun()
    unasked = Tries(None, None, repeatable=True)
    unasked.begin()
    for tries in (begun, unasked):
        with pytest.raises(errors.QueueFullError):
            tries.wait_s(FULL)


# Each kind of client, as a function that makes one call and waits for what comes of it.
Call = Callable[[Any], Any]


async def _by_threads(address: str, retry: Retry | None, call: Call, timeout_s: float | None) -> Any:
    def work() -> Any:
        with Client(address, retry=retry, timeout_s=timeout_s) as client:
            return call(client)

    return await asyncio.to_thread(work)


async def _by_a_loop(address: str, retry: Retry | None, call: Call, timeout_s: float | None) -> Any:
    async with AsyncClient(address, retry=retry, timeout_s=timeout_s) as client:
        return await call(client)


@pytest.fixture(params=[_by_threads, _by_a_loop], ids=["threads", "loop"])
def asking(request, gateway):
    """Makes a call with either client: ``await asking(call, retry=..., timeout_s=...)``."""

    def ask(call: Call, retry: Retry | None = STEADY, timeout_s: float | None = None) -> Awaitable[Any]:
        return request.param(gateway.address, retry, call, timeout_s)

    return ask


CALLS: dict[str, Call] = {
    "generate": lambda client: client.generate("count 1").answer(),
    "generate_once": lambda client: client.generate_once("count 1"),
    "tokenize": lambda client: client.tokenize("a"),
}


def _soon(seconds: float = 0.02) -> errors.RequestError:
    return errors.QueueFullError("full", retry_after_s=seconds)


@pytest.mark.parametrize("name", CALLS)
async def test_a_refusal_is_followed_by_another_attempt(gateway, asking, name):
    gateway.failures = [_soon(), _soon()]
    assert await asking(CALLS[name])
    assert gateway.num_failed == 2


@pytest.mark.parametrize("name", CALLS)
async def test_there_are_so_many_attempts_and_the_last_error_is_told(gateway, asking, name):
    gateway.failures = [_soon(), _soon(), errors.NoWorkerError("none", retry_after_s=0.02)]
    with pytest.raises(errors.NoWorkerError):
        await asking(CALLS[name])
    assert gateway.num_failed == 3


@pytest.mark.parametrize("name", CALLS)
async def test_nothing_is_repeated_unasked(gateway, asking, name):
    gateway.failures = [_soon(0.0)]
    with pytest.raises(errors.QueueFullError):
        await asking(CALLS[name], retry=None)
    assert gateway.num_failed == 1


async def test_a_stream_that_has_begun_is_not_repeated(gateway, asking):
    gateway.fails_behind_accepted = _soon()
    with pytest.raises(errors.QueueFullError):
        await asking(lambda client: client.generate("count 1").answer())
    assert len(gateway.requests) == 1


async def test_a_gateway_that_is_lost_is_asked_again_but_not_for_an_answer_in_one_piece(gateway, asking):
    quick = Retry(attempts=3, first_s=0.01)
    for name in ("generate", "tokenize"):
        gateway.failures, gateway.num_failed = [grpc.StatusCode.UNAVAILABLE] * 2, 0
        assert await asking(CALLS[name], retry=quick)
        assert gateway.num_failed == 2
    gateway.failures, gateway.num_failed = [grpc.StatusCode.UNAVAILABLE] * 2, 0
    with pytest.raises(errors.GatewayLostError):
        await asking(CALLS["generate_once"], retry=quick)
    assert gateway.num_failed == 1


@pytest.mark.parametrize("name", CALLS)
async def test_a_wait_beyond_the_timeout_is_not_begun(gateway, asking, name):
    gateway.failures = [_soon(7.0)] * 2
    with pytest.raises(errors.QueueFullError):
        await asking(CALLS[name], timeout_s=6.0)
    assert gateway.num_failed == 1


async def test_the_timeout_is_that_of_all_attempts(gateway, asking):
    gateway.failures = [_soon(0.2)]
    with pytest.raises(errors.DeadlineError):
        await asking(lambda client: client.generate("silent", timeout_s=1.0).answer(), timeout_s=60.0)
    first_s, second_s = gateway.time_left_s
    assert first_s < 60.0
    # What is sent of a time is rounded up.
    assert second_s < first_s - 0.1


async def test_a_gateway_that_never_comes_is_told_after_all_attempts():
    (port,) = free_ports(1)
    address, retry = f"127.0.0.1:{port}", Retry(attempts=3, first_s=0.01)
    for ask in (_by_threads, _by_a_loop):
        with pytest.raises(errors.GatewayLostError, match=address):
            await ask(address, retry, lambda client: client.models(), None)


async def test_a_wait_ends_with_its_generation(gateway):
    gateway.failures = [_soon(20.0)] * 2
    patient = Retry(draw=lambda: 0.0)
    async with AsyncClient(gateway.address, retry=patient) as client:
        generation = client.generate("count 1")
        reading = asyncio.create_task(generation.answer())
        await asyncio.to_thread(gateway.failed.wait, 10)
        await asyncio.sleep(0.05)
        generation.cancel()
        with pytest.raises(errors.RequestCancelledError):
            await reading
    with Client(gateway.address, retry=patient) as blocking:
        waiting = blocking.generate("count 1")
        threading.Timer(0.2, waiting.cancel).start()
        with pytest.raises(errors.RequestCancelledError):
            waiting.answer()


async def test_a_wait_ends_with_its_client(gateway):
    patient = Retry(draw=lambda: 0.0)
    for name in CALLS:
        gateway.failures = [_soon(20.0)]
        async with AsyncClient(gateway.address, retry=patient) as client:
            asking = asyncio.create_task(CALLS[name](client))
            await asyncio.to_thread(gateway.failed.wait, 10)
            await asyncio.sleep(0.05)
        with pytest.raises(errors.RequestCancelledError):
            await asking
        gateway.failures = [_soon(20.0)]
        blocking = Client(gateway.address, retry=patient)
        threading.Timer(0.2, blocking.close).start()
        with pytest.raises(errors.RequestCancelledError):
            await asyncio.to_thread(CALLS[name], blocking)


async def test_what_was_refused_leaves_nothing_in_the_answer(asking, gateway):
    gateway.failures = [_soon(), _soon()]
    answer = await asking(lambda client: client.generate("count 3").answer())
    assert answer.text == "0 1 2 "
    assert answer.token_ids == (100, 101, 102)
