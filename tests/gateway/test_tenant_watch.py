"""The tenants as a gateway last read them: what it does while it cannot read them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from gateway import tenant_watch
from gateway.guard import Guard
from gateway.tenant_watch import TenantWatch
from tercet.errors import StoreError, StoreLostError, UnauthenticatedError
from tercet.health_client import ask
from tercet.tenants.api_key import new_key
from tercet.tenants.directory import Directory, Key, Tenant
from tercet.tenants.plan import TenantPlan

from .guarded_gateway import GuardedGateway, Headers, bearer, until

STALE_S = 10.0
KEY = new_key()


def state(revision: int) -> Directory:
    tenants = {"alice": Tenant("alice", "u1", TenantPlan())}
    return Directory(revision, bytes(32), tenants, {KEY.id: Key(KEY.id, "alice", KEY.digest, False, None)})


class FakeStore:
    """Says what a test decides; `hang` makes a read wait for `go_on`."""

    def __init__(self) -> None:
        self.state = state(1)
        self.fails = False
        self.breaks = False
        self.hang = False
        self.damaged = False
        self.checks = 0
        self.go_on = threading.Event()
        self.reads = 0

    def check(self) -> None:
        self.checks += 1
        if self.damaged:
            raise StoreError("the file is damaged")

    def read(self, known: int | None) -> Directory | None:
        self.reads += 1
        if self.hang:
            self.go_on.wait(30)
        if self.fails:
            raise StoreError("the disk is gone")
        if self.breaks:
            raise ZeroDivisionError("a bug")
        return None if self.state.revision == known else self.state


class Context:
    """As much of a call as a guard looks at."""

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def invocation_metadata(self) -> Headers:
        return self._headers


class Bench:
    """A watch that runs, with a clock that stands."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.now = 100.0
        self.seen: list[int] = []
        self.deaf = False
        self.watch = TenantWatch(self.store.read, STALE_S, self._changed, lambda: self.now, self.store.check)

    def _changed(self, directory: Directory) -> None:
        if self.deaf:
            raise ZeroDivisionError("a bug")
        self.seen.append(directory.revision)

    def ask(self, headers: Headers | None = None) -> str:
        """Whom the guard takes a call for."""
        context: Any = Context(bearer(KEY) if headers is None else headers)
        return Guard(self.watch, lambda: 0.0).caller(context).tenant

    async def reads(self, count: int = 2) -> None:
        """Waits for so many reads to end that begin after now."""
        target = self.store.reads + count + 1
        await until(lambda: self.store.reads >= target)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.watch.start()
    task = asyncio.create_task(made.watch.run())
    yield made
    made.store.go_on.set()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_it_is_looked_more_than_twice_a_second() -> None:
    """README.md promises that a key opens nothing a second after it was revoked."""
    assert tenant_watch.POLL_S < 0.5


async def test_a_change_is_told_once(bench: Bench) -> None:
    assert bench.seen == [1]
    bench.store.state = state(2)
    await until(lambda: bench.seen == [1, 2])
    await bench.reads()
    assert bench.seen == [1, 2]
    # A copy that goes on from before is another state, too.
    bench.store.state = state(1)
    await until(lambda: bench.seen == [1, 2, 1])


async def test_a_store_that_is_lost_at_the_start_is_an_error() -> None:
    made = Bench()
    made.store.fails = True
    with pytest.raises(StoreError, match="the disk is gone"):
        await made.watch.start()


async def test_the_last_state_holds_for_a_while(bench: Bench) -> None:
    bench.store.fails = True
    with structlog.testing.capture_logs() as logs:
        await bench.reads(3)
        bench.now += STALE_S
        assert bench.ask() == "alice"
        with pytest.raises(UnauthenticatedError):
            bench.ask(())
        bench.now += 0.1
        # Not even the wrong key is known to be wrong.
        for headers in (None, ()):
            with pytest.raises(StoreLostError) as caught:
                bench.ask(headers)
            assert caught.value.retry_after_s
        bench.store.fails = False
        await until(lambda: not bench.watch.stale)
        assert bench.ask() == "alice"
    # Said once, and once that it is over.
    told = [line["event"] for line in logs]
    assert told == ["tenants_store_lost", "tenants_store_found"]
    assert "the disk is gone" in logs[0]["problem"]


async def test_a_store_that_does_not_answer_is_lost_as_well(bench: Bench) -> None:
    bench.store.hang = True
    await bench.reads(0)
    bench.now += STALE_S + 0.1
    with pytest.raises(StoreLostError):
        bench.ask()
    bench.store.hang = False
    bench.store.go_on.set()
    await until(lambda: not bench.watch.stale)
    assert bench.ask() == "alice"


async def test_what_nobody_expects_is_a_lost_store_too(bench: Bench) -> None:
    with structlog.testing.capture_logs() as logs:
        bench.store.breaks = True
        await bench.reads()
        assert bench.ask() == "alice"
        bench.now += STALE_S + 0.1
        with pytest.raises(StoreLostError):
            bench.ask()
        bench.store.breaks = False
        await until(lambda: not bench.watch.stale)
    assert [line["event"] for line in logs] == ["tenants_store_lost", "tenants_store_found"]
    assert isinstance(logs[0]["exc_info"], ZeroDivisionError)


async def test_it_is_looked_now_and_then_whether_the_store_is_damaged(bench: Bench) -> None:
    with structlog.testing.capture_logs() as logs:
        bench.store.damaged = True
        await bench.reads()
        # Not each time.
        assert bench.store.checks == 1
        bench.now += tenant_watch.CHECK_S
        await until(lambda: bench.store.checks >= 4)
        assert bench.ask() == "alice"
        bench.now += STALE_S + 0.1
        with pytest.raises(StoreLostError):
            bench.ask()
        bench.store.damaged = False
        await until(lambda: not bench.watch.stale)
    assert [line["event"] for line in logs] == ["tenants_store_lost", "tenants_store_found"]
    assert "the file is damaged" in logs[0]["problem"]


def damaged(path: Path) -> bytes:
    """What was in a file in which there is nothing of use now."""
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\xff" * len(whole))
    return whole


async def until_intact(guarded: GuardedGateway, *reasons: str) -> None:
    """Waits until these are all that keeps the gateway from being intact."""
    while await ask(guarded.channel, ["intact"], 20.0) != {"intact": reasons}:  # noqa: ASYNC110 - it is another one's
        await asyncio.sleep(0.01)


async def test_a_file_that_is_damaged_is_noticed_while_calls_go_on(
    guarded: GuardedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_watch, "CHECK_S", 0.0)
    guarded.store.close()
    path = Path(guarded.store.name)
    with structlog.testing.capture_logs() as logs:
        whole = damaged(path)
        await until(lambda: any(line["event"] == "tenants_store_lost" for line in logs))
        await until_intact(guarded, "its tenants cannot be read")
        assert await guarded.call("Models/ListModels", "bob")
        with pytest.raises(StoreError):
            guarded.store.revoke("bob", None)
        await asyncio.to_thread(path.write_bytes, whole)
        await until(lambda: any(line["event"] == "tenants_store_found" for line in logs))
        await until_intact(guarded)
    assert [line["event"] for line in logs if line["event"].startswith("tenants_store")] == [
        "tenants_store_lost", "tenants_store_found",
    ]  # fmt: skip


async def test_what_was_not_heard_is_told_again(bench: Bench) -> None:
    bench.deaf = True
    bench.store.state = state(2)
    await bench.reads()
    assert bench.watch.directory.revision == 1
    bench.deaf = False
    await until(lambda: bench.seen == [1, 2])


async def test_a_store_that_does_not_answer_at_the_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_watch, "START_LIMIT_S", 0.1)
    made = Bench()
    made.store.hang = True
    with pytest.raises(StoreError, match="has not answered"):
        await made.watch.start()
    made.store.go_on.set()


HUNG = """
import asyncio, threading
from gateway.tenant_watch import TenantWatch
from tercet.tenants.directory import Directory

hangs = threading.Event()

def read(known):
    if known is None:
        return Directory(1, bytes(32), {}, {})
    hangs.set()
    threading.Event().wait()

async def main():
    watch = TenantWatch(read, 30.0, lambda directory: None)
    await watch.start()
    task = asyncio.create_task(watch.run())
    await asyncio.to_thread(hangs.wait)
    task.cancel()
    await asyncio.wait([task])

asyncio.run(main())
print("ended")
"""


def test_a_process_ends_while_its_store_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[2]
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["ended"]), ended.stderr
