"""The books of a mesh of real processes: they are what clients received and what the scheduler counted, also when the
gateway is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from bench.postgres_server import PostgresServer
from tercet.client import AsyncClient
from tercet.errors import LedgerError, RequestError
from tercet.ledger.cancellations import ORIGIN_GATEWAY_LOST, read_cancellations
from tercet.ledger.ledger import Ledger
from tercet.ledger.tables import requests
from tercet.ledger.usage import Usage, usage
from tercet.messages import Accepted

from ..ledger.conftest import postgres as postgres  # so that pytest finds it here
from .conftest import LIMIT_S, ROOT, Mesh, free_port, wait_until

pytestmark = pytest.mark.e2e

REQUESTS = 240
KINDS = ("stream", "once", "several", "leaves", "cancelled", "late", "unknown", "long")


class Books:
    """A mesh with a ledger, read beside it."""

    def __init__(self, mesh: Mesh, where: str) -> None:
        self.mesh = mesh
        self._where = where
        self.ledger = Ledger(where, time.time)

    def rows(self) -> list[Any]:
        """All requests; none while there is no ledger yet."""
        with contextlib.suppress(LedgerError):
            return list(self.ledger.read(sa.select(requests)))
        return []

    def journals(self) -> list[str]:
        """Those beside the database, by their first files."""
        return [each.name for each in Path(self._where).parent.glob("*.0.journal")]

    def total(self) -> Usage:
        (total,) = usage(self.ledger, 0.0, 1e12)
        return total

    def shown(self, *arguments: str) -> str:
        """What `tercet usage` prints."""
        command = [sys.executable, "-m", "tercet", "usage", "--ledger-database", self._where, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True).stdout

    def wait_closed(self, count: int, timeout_s: float = LIMIT_S) -> None:
        """Waits until so many requests and refusals are there, and none of them is open."""

        def closed() -> bool:
            total = self.total()
            return total.open == 0 and total.requests >= count

        wait_until(closed, f"{count} requests are in the ledger and closed; logs:\n{self.mesh.logs()}", timeout_s)


@pytest.fixture
def books(own_mesh: Callable[..., Mesh], tmp_path: Path) -> Iterator[Books]:
    """A mesh of which a test may kill what it likes."""
    path = tmp_path / "ledger.db"
    made = Books(own_mesh(TERCET_LEDGER_DATABASE=str(path), TERCET_LEDGER_GPU_HOUR_PRICE="3600"), str(path))
    made.mesh.start()
    yield made
    made.ledger.close()


async def ask(client: AsyncClient, kind: str, request_id: str, rng: random.Random, tokens: Counter[str]) -> None:
    """One client, who counts the tokens it gets."""
    prompt: Any = [5] * 9000 if kind == "long" else "Once upon a time"
    options: dict[str, Any] = {
        "request_id": request_id, "ignore_eos": True, "n": 3 if kind == "several" else 1,
        "max_tokens": 4000 if kind in ("leaves", "cancelled", "late") else rng.randrange(1, 12),
        "model": "nobody" if kind == "unknown" else "",
    }  # fmt: skip
    with contextlib.suppress(RequestError):
        if kind == "once":
            answer = await client.generate_once(prompt, **options)
            tokens[kind] += len(answer.token_ids)
            return
        leaves_after = rng.randrange(1, 8)
        timeout_s = 5.0 if kind == "late" else None
        async with client.generate(prompt, timeout_s=timeout_s, **options) as events:
            async for event in events:
                tokens[kind] += len(getattr(event, "token_ids", ()))
                leaves_after -= 1
                if not leaves_after and kind == "leaves":
                    return
                if not leaves_after and kind == "cancelled":
                    await client.cancel(request_id)


async def test_sums_are_what_clients_received_and_what_the_scheduler_counted(books: Books) -> None:
    rng = random.Random(7)
    tokens: Counter[str] = Counter()
    kinds = [rng.choice(KINDS) for _ in range(REQUESTS)]
    async with AsyncClient(books.mesh.address) as client:
        await asyncio.gather(*(ask(client, kind, f"{kind}-{number}", rng, tokens) for number, kind in enumerate(kinds)))
        await asyncio.to_thread(books.wait_closed, REQUESTS)
        traffic = await client.traffic()
    rows, total = books.rows(), books.total()
    assert total.requests == REQUESTS
    assert total.refused == kinds.count("unknown") + kinds.count("long")
    assert len({each.request_id for each in rows}) == len(rows) == REQUESTS - total.refused
    for kind in KINDS:
        delivered = sum(each.delivered_tokens for each in rows if each.request_id.startswith(f"{kind}-"))
        if kind in ("leaves", "late"):
            # What was on its way when they left was delivered to their connections.
            assert delivered >= tokens[kind]
        else:
            assert delivered == tokens[kind], kind
    assert total.generated_tokens == total.delivered_tokens + total.wasted_tokens
    # What the scheduler counted, in its own way. Who was too late, or left, before the gateway heard that it was
    # accepted has a row without the class that it was given: the scheduler may or may not have come to accept it.
    counts = [each.counts for each in traffic.classes]
    heard = sum(bool(each.traffic_class) for each in rows)
    assert heard <= sum(each.accepted for each in counts) <= len(rows)
    assert sum(each.served for each in counts) == total.completed
    assert sum(each.generated_tokens + each.wasted_tokens for each in counts) == total.generated_tokens
    # What was computed took time, and that is all that it costs.
    assert all(each.gpu_s > 0 for each in rows if each.generated_tokens)
    assert total.cost == pytest.approx(total.gpu_s)
    # Each that ended before its end has a row of its cancel, which was acknowledged, and no other has.
    found = read_cancellations(books.ledger, 0.0, 1e12, limit=REQUESTS)
    cancelled = {each.request_id: each.cancellation for each in found}
    assert cancelled.keys() == {each.request_id for each in rows if each.outcome in ("cancelled", "expired")}
    # A client whose deadline has passed may leave before the gateway sees it.
    origins = {"leaves": {"client"}, "cancelled": {"operator"}, "late": {"deadline", "client"}}
    for name, cancel in cancelled.items():
        assert cancel.origin in origins[name.partition("-")[0]]
    # Those that the scheduler had to do with; the others were not submitted yet.
    met = {name: each for name, each in cancelled.items() if each.states}
    assert all(each.freed_s is not None for each in met.values())
    # Where the scheduler looks at the deadline as well, its end may come before its answer to the gateway.
    assert all(each.done_s is not None or name.startswith("late-") for name, each in met.items())
    assert sum(each.freed.count for each in traffic.cancels) == len(met)
    # Steps go on until the last that was cancelled is free.
    ended_at = max(each.arrived_at + each.total_s for each in rows) + max(each.freed_s or 0.0 for each in met.values())
    assert total.gpu_s <= ended_at - min(each.arrived_at for each in rows)
    shown = await asyncio.to_thread(books.shown, "--by", "outcome", "--format", "json")
    by_outcome = {each["outcome"]: each["requests"] for each in map(json.loads, shown.splitlines())}
    assert sum(by_outcome.values()) == REQUESTS
    assert by_outcome["completed"] == total.completed


async def test_a_gateway_that_is_killed_leaves_books_that_close(books: Books) -> None:
    async with AsyncClient(books.mesh.address) as client:
        for number in range(5):
            await client.generate_once("Once", max_tokens=3, ignore_eos=True, request_id=f"done-{number}")
        accepted: set[str] = set()

        async def stream(request_id: str) -> None:
            with contextlib.suppress(RequestError):
                async for event in client.generate("Once", max_tokens=4000, ignore_eos=True, request_id=request_id):
                    accepted.update({event.request_id} if isinstance(event, Accepted) else ())

        tasks = [asyncio.create_task(stream(f"running-{number}")) for number in range(12)]
        await asyncio.to_thread(wait_until, lambda: len(accepted) >= 8, "streams run")
        await asyncio.to_thread(books.mesh.kill, "gateway")
        await asyncio.gather(*tasks)
    books.mesh.start("gateway")
    await asyncio.to_thread(wait_until, lambda: books.mesh.healthy("gateway"), "the gateway is back")
    async with AsyncClient(books.mesh.address) as client:
        await client.generate_once("Once", max_tokens=3, ignore_eos=True, request_id="after")
    done = {f"done-{number}" for number in range(5)}
    await asyncio.to_thread(books.wait_closed, len(accepted | done) + 1)
    rows = books.rows()
    outcomes = {each.request_id: (each.outcome, each.reason) for each in rows}
    # Whoever was told that it is accepted is in the books, and so is who has been served; none is there twice.
    assert accepted | done < set(outcomes)
    assert len(outcomes) == len(rows)
    lost = {name for name, (outcome, _) in outcomes.items() if outcome == "lost"}
    assert accepted <= lost
    assert {outcomes[name] for name in lost} == {("lost", "GATEWAY_LOST")}
    # Its end may have been on its way to the books.
    assert {outcomes[name] for name in done} <= {("completed", "length"), ("lost", "GATEWAY_LOST")}
    # That of the one that is alive.
    assert len(books.journals()) == 1
    found = read_cancellations(books.ledger, 0.0, 1e12, origin=ORIGIN_GATEWAY_LOST)
    assert {each.request_id for each in found} == lost
    assert outcomes["after"] == ("completed", "length")
    # By what it had left, and not because it was silent for so long.
    assert books.mesh.records("gateway", "ledger_journal_adopted")
    assert books.mesh.records("gateway", "ledger_rows_closed")


@pytest.fixture
def second_gateway(postgres: PostgresServer, own_mesh: Callable[..., Mesh]) -> Iterator[tuple[Books, str]]:
    """A mesh that keeps its books in PostgreSQL, and the address of another gateway that does so, too."""
    where = postgres.make_database()
    made = Books(own_mesh(TERCET_LEDGER_DATABASE=where), where)
    made.mesh.start()
    port = free_port()
    other = subprocess.Popen(
        [sys.executable, "-m", "tercet", "gateway"], cwd=ROOT, stderr=subprocess.DEVNULL,
        env={**made.mesh._environment, "TERCET_GATEWAY_PORT": str(port)},
    )  # fmt: skip
    yield made, f"127.0.0.1:{port}"
    other.terminate()
    other.wait(30)
    made.ledger.close()


async def test_gateways_share_a_database_and_close_what_others_leave(second_gateway: tuple[Books, str]) -> None:
    books, address = second_gateway
    options: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}

    async def stream(client: AsyncClient, request_id: str) -> None:
        with contextlib.suppress(RequestError):
            await client.generate("Once", request_id=request_id, **options).answer()

    async with AsyncClient(books.mesh.address) as first, AsyncClient(address) as second:
        while True:
            with contextlib.suppress(RequestError):
                await second.generate_once("Once", max_tokens=3, ignore_eos=True, request_id="served")
                break
            await asyncio.sleep(0.1)
        tasks = [asyncio.create_task(stream(client, name)) for name, client in (("dies", first), ("lives", second))]

        def are_open(*names: str) -> bool:
            return {each.request_id for each in books.rows() if each.outcome == "open"} == set(names)

        await asyncio.to_thread(wait_until, lambda: are_open("dies", "lives"), "both are in the ledger")
        await asyncio.to_thread(books.mesh.kill, "gateway")
        await asyncio.to_thread(wait_until, lambda: are_open("lives"), "the other closes its row")
        assert await second.cancel("lives")
        await asyncio.gather(*tasks)
        await asyncio.to_thread(wait_until, are_open, "all is closed")
    outcomes = {each.request_id: (each.outcome, each.reason) for each in books.rows() if each.outcome != "refused"}
    assert outcomes.pop("served") == ("completed", "length")
    assert outcomes == {"dies": ("lost", "GATEWAY_LOST"), "lives": ("cancelled", "REQUEST_CANCELLED")}
    total = json.loads(await asyncio.to_thread(books.shown, "--by", "", "--format", "json"))
    assert (total["completed"], total["lost"], total["cancelled"], total["open"]) == (1, 1, 1, 0)


async def test_without_settings_there_is_a_ledger(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    """In the state folder, for two meshes at once, and commands find it."""
    home = {"XDG_STATE_HOME": str(tmp_path / "state")}
    meshes = [own_mesh(**home, TERCET_LEDGER_DATABASE="auto") for _ in range(2)]
    for mesh in meshes:
        mesh.start()
    for number, mesh in enumerate(meshes):
        async with AsyncClient(mesh.address) as client:
            await client.generate_once("Once", max_tokens=3, ignore_eos=True, request_id=f"of-{number}")
    for mesh in meshes:
        mesh.stop()
    command = [sys.executable, "-m", "tercet", "usage", "--by", "", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "TERCET_LEDGER_DATABASE"}
    done = await asyncio.to_thread(
        subprocess.run, command, env={**environment, **home}, capture_output=True, text=True, cwd=ROOT, check=True
    )
    total = json.loads(done.stdout)
    assert (total["requests"], total["completed"], total["open"]) == (2, 2, 0)
    # Nothing else is left behind.
    assert [each.name for each in (tmp_path / "state" / "tercet").iterdir()] == ["ledger.db"]
