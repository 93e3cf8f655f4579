"""DNS names of workers: what changes, what is kept when a lookup fails, and that nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from scheduler.discovery import Changes, Discovery, changes, resolve

NAME = "dns://workers:50053"
_lists = st.lists(st.sampled_from("abcdef"))


@given(_lists, _lists)
def test_changes_lead_from_the_old_list_to_the_new(old: list[str], new: list[str]) -> None:
    difference = changes(old, new)
    assert len(set(difference.added)) == len(difference.added)
    assert len(set(difference.removed)) == len(difference.removed)
    assert not set(difference.added) & set(old)
    assert not set(difference.removed) & set(new)
    assert (set(old) - set(difference.removed)) | set(difference.added) == set(new)


def test_changes_keep_their_order() -> None:
    assert changes(["a", "b", "c"], ["d", "c", "e", "d"]) == Changes(("d", "e"), ("a", "b"))


class Resolver:
    """Answers as a test says; counts how often it was asked, and how many lookups ran at once."""

    def __init__(self, answer: list[str] | Exception | None) -> None:
        # None: no answer at all.
        self.answer = answer
        self.asked = 0
        self.running = 0
        self.most_running = 0
        self._changed = asyncio.Condition()

    async def __call__(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("workers", 50053)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            async with self._changed:
                self.asked += 1
                self._changed.notify_all()
                await self._changed.wait_for(lambda: self.answer is not None)
            if isinstance(self.answer, Exception):
                raise self.answer
            assert self.answer is not None
            return self.answer
        finally:
            self.running -= 1

    async def answers(self, answer: list[str] | Exception | None) -> None:
        """Says something else from now on, and waits until it was asked twice: the first answer is taken then."""
        async with self._changed:
            self.answer = answer
            self._changed.notify_all()
            seen = self.asked
            await asyncio.wait_for(self._changed.wait_for(lambda: self.asked >= seen + 2), 20)


@contextlib.asynccontextmanager
async def watching(discovery: Discovery) -> AsyncIterator[list[tuple[str, ...]]]:
    """Runs it; yields the lists of addresses it has told."""
    told: list[tuple[str, ...]] = []
    task = asyncio.create_task(discovery.run(lambda: told.append(discovery.addresses)))
    try:
        yield told
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_name_is_followed_and_mixed_lists_keep_their_order_and_no_duplicate() -> None:
    resolver = Resolver(["10.0.0.2:50053", "10.0.0.1:50053"])
    discovery = Discovery(["10.0.0.1:50053", NAME, "host:1", "host:1"], 0.001, resolver)
    # Until the name has an address, it stands for what is not known yet.
    assert discovery.addresses == ("10.0.0.1:50053", NAME, "host:1")
    async with watching(discovery) as told:
        await resolver.answers(["10.0.0.2:50053", "10.0.0.1:50053"])
        await resolver.answers(["10.0.0.3:50053"])
    assert told == [("10.0.0.1:50053", "10.0.0.2:50053", "host:1"), ("10.0.0.1:50053", "10.0.0.3:50053", "host:1")]


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "not known"), UnicodeError("label too long"), []])
async def test_a_failing_lookup_keeps_what_is_known_and_is_logged_once_per_change(
    failure: list[str] | Exception,
) -> None:
    resolver = Resolver(failure)
    with structlog.testing.capture_logs() as logs:
        discovery = Discovery([NAME], 0.001, resolver)
        async with watching(discovery) as told:
            await resolver.answers(failure)
            await resolver.answers(failure)
            assert (told, discovery.addresses) == ([], (NAME,))
            await resolver.answers(["a:1"])
            await resolver.answers(failure)
            await resolver.answers(failure)
            assert told == [("a:1",)]
            await resolver.answers(["a:1"])
    assert told == [("a:1",)]
    assert [event["event"] for event in logs] == [
        "name_not_resolved", "name_resolved", "name_not_resolved", "name_resolved",
    ]  # fmt: skip
    assert [event.get("addresses_kept") for event in logs] == [0, None, 1, None]


async def test_a_lookup_that_hangs_is_a_failure_and_is_never_doubled() -> None:
    resolver = Resolver(None)
    with structlog.testing.capture_logs() as logs:
        discovery = Discovery([NAME], 0.001, resolver, lookup_s=0.01)
        async with watching(discovery) as told:
            while not logs:  # noqa: ASYNC110 - `logs` is a plain list
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert (resolver.asked, discovery.addresses) == (1, (NAME,))
            await resolver.answers(["a:1"])
            assert told == [("a:1",)]
    assert resolver.most_running == 1
    assert resolver.running == 0
    assert "no answer within" in logs[0]["problem"]


async def test_two_names_do_not_wait_for_each_other() -> None:
    slow = asyncio.Event()

    async def resolver(host: str, port: int) -> list[str]:
        if host == "slow":
            await slow.wait()
        return [f"{host}:{port}"]

    discovery = Discovery(["dns://slow:1", "dns://quick:2"], 60, resolver)
    async with watching(discovery) as told:
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert told == [("dns://slow:1", "quick:2")]
        slow.set()
        while len(told) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert told[1] == ("slow:1", "quick:2")


async def test_without_names_there_is_nothing_to_do() -> None:
    await asyncio.wait_for(Discovery(["a:1"], 5).run(lambda: pytest.fail("nothing changed")), 5)


async def test_the_resolver_of_the_system_finds_both_families() -> None:
    assert "127.0.0.1:7" in await resolve("localhost", 7)
    assert await resolve("127.0.0.1", 7) == ["127.0.0.1:7"]
    assert await resolve("::1", 7) == ["[::1]:7"]
    with pytest.raises(OSError, match=r"."):
        await resolve("no.such.host.invalid", 7)
