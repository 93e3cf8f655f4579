"""A gateway's names: the table, and what is looked at."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import health
from gateway.books import Books
from gateway.health import SILENT_LOOKS, GatewayFacts, Health, conditions
from tercet.errors import LedgerError, SchedulerLostError
from tercet.health import Conditions
from tercet.health_client import ask
from tercet.ledger import writer
from tercet.sections import LedgerSettings

SERVICE = "tercet.v1.Inference"
WELL = GatewayFacts(
    stopping=False,
    attached=True,
    silent=False,
    served=True,
    unmoved=(),
    tenants_lost=False,
    tenants_stale=False,
    ledger_lost=False,
    ledger_full=False,
    ledger_dead=False,
    certificate="",
    mesh_certificate="",
    crowded=(),
    scheduler={"intact": (), "has-room": ()},
)
UNREADY = {"ready", SERVICE}


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, set()),
        ({"scheduler": {}}, set()),
        ({"stopping": True}, {"", *UNREADY}),
        ({"attached": False, "served": False}, {*UNREADY, "intact"}),
        ({"silent": True}, {*UNREADY, "intact"}),
        ({"served": False}, UNREADY),
        ({"unmoved": ("no worker has moved for 12 s",)}, UNREADY),
        ({"tenants_lost": True}, {"intact"}),
        ({"tenants_lost": True, "tenants_stale": True}, {*UNREADY, "intact"}),
        ({"ledger_lost": True}, {"intact"}),
        ({"ledger_lost": True, "ledger_full": True}, {*UNREADY, "intact"}),
        ({"ledger_dead": True}, {"", "live", *UNREADY}),
        ({"certificate": "its certificate has expired"}, {"intact"}),
        ({"mesh_certificate": "its certificate has expired"}, {"intact"}),
        ({"crowded": ("no room for requests",)}, {"has-room"}),
        ({"scheduler": {"intact": ("1 of 2 workers not connected",)}}, {"intact"}),
        ({"scheduler": {"has-room": ("no room for class batch",)}}, {"has-room"}),
    ],
)
def test_what_is_lost_by_what(facts: dict[str, Any], lost: set[str]) -> None:
    found = conditions(dataclasses.replace(WELL, **facts), SERVICE)
    assert found.keys() == {"", "live", "ready", SERVICE, "intact", "has-room"}
    assert {name for name, reasons in found.items() if reasons} == lost


def test_one_cause_is_told_once() -> None:
    nobody = conditions(dataclasses.replace(WELL, attached=False, served=False), SERVICE)
    assert nobody["ready"] == ("no scheduler is there",)
    away = conditions(dataclasses.replace(WELL, scheduler={"intact": ("1 of 2 workers not connected",)}), SERVICE)
    assert away["intact"] == ("scheduler: 1 of 2 workers not connected",)


class FakeLink:
    """A link to a scheduler that says `answer` of itself, or nothing."""

    def __init__(self) -> None:
        self.up = True
        self.answer: dict[str, tuple[str, ...]] | None = {}
        self.asked = 0

    def ready(self, model: str, revision: str) -> bool:
        return self.up

    async def scheduler_health(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        self.asked += 1
        if self.answer is None:
            raise SchedulerLostError("no answer")
        return {name: self.answer.get(name, ()) for name in names}


@dataclasses.dataclass
class FakeModel:
    name: str = "m"
    revision: str = "r"


class FakeParts:
    """What else a gateway has: its server, tenants and certificates, among others."""

    def __init__(self) -> None:
        self.models = [FakeModel()]
        self.num_turned_away = 0
        self.lost = self.stale = False
        self.problem = self.certificate_problem = ""

    def tell(self, _: Conditions) -> None:
        """Nobody asks."""


class Bench:
    """A look at fakes, with books of its own."""

    def __init__(self, books: Books) -> None:
        self.link, self.parts, self.server, self.now = FakeLink(), FakeParts(), FakeParts(), 0.0
        server: Any = self.server
        parts: Any = self.parts
        self.health = Health(
            server, SERVICE, self.link, parts, parts, books, parts, parts, asyncio.Event(), lambda: self.now,  # type: ignore[arg-type]
        )  # fmt: skip

    def lost(self) -> dict[str, tuple[str, ...]]:
        """What does not hold a second later, and why."""
        self.now += 1.0
        return {name: reasons for name, reasons in self.health.look().items() if reasons}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("not within 20 s")


def no_books() -> Books:
    return Books(None, LedgerSettings(), "gateway-1", ())


async def test_a_scheduler_that_leaves_questions_unanswered_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LOOK_SECONDS", 0.001)
    bench = Bench(no_books())
    asking = asyncio.create_task(bench.health.ask())
    bench.link.answer = {"intact": ("1 of 2 workers not connected",)}
    await until(lambda: bench.lost() == {"intact": ("scheduler: 1 of 2 workers not connected",)})
    bench.link.answer = None
    first = bench.link.asked
    # Until it counts as silent, what it said last holds: nobody hears that all is well because nobody answered.
    while bench.link.asked < first + SILENT_LOOKS - 1:
        await asyncio.sleep(0)
        assert bench.lost() == {"intact": ("scheduler: 1 of 2 workers not connected",)}
    await until(lambda: "ready" in bench.lost())
    assert bench.link.asked >= first + SILENT_LOOKS
    bench.link.answer = {}
    await until(lambda: bench.lost() == {})
    # What it says of its workers counts when it has said it for a while: its stream is quicker.
    bench.link.answer = {"ready": ("no worker has moved for 12 s",)}
    first = bench.link.asked
    await until(lambda: bench.lost().get("ready") == ("scheduler: no worker has moved for 12 s",))
    assert bench.link.asked >= first + SILENT_LOOKS
    # A question without an answer in between is no answer, neither of the one kind nor of the other.
    bench.link.answer, first = None, bench.link.asked
    while bench.link.asked < first + SILENT_LOOKS - 1:
        await asyncio.sleep(0)
        assert bench.lost()["ready"] == ("scheduler: no worker has moved for 12 s",)
    # Of a scheduler that is gone it is the stream that says so, and nothing else counts.
    bench.link.up = False
    gone = ("no scheduler is there",)
    assert bench.lost() == {"ready": gone, SERVICE: gone, "intact": gone}
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_places_that_are_all_taken_for_long_are_no_room() -> None:
    bench = Bench(no_books())
    for _ in range(3):
        bench.parts.num_turned_away += 1
        assert bench.lost() == {}
    bench.parts.num_turned_away += 1
    assert bench.lost() == {"has-room": ("no room for requests",)}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"parts.lost": True}, {"intact": "its tenants cannot be read"}),
        ({"parts.stale": True}, dict.fromkeys(UNREADY, "its tenants could not be read for too long")),
        ({"parts.problem": "its certificate has expired"}, {"intact": "towards the mesh its certificate has expired"}),
        ({"server.certificate_problem": "its certificate has expired"}, {"intact": "its certificate has expired"}),
        ({"link.up": False}, dict.fromkeys([*UNREADY, "intact"], "no scheduler is there")),
        ({"parts.models": []}, dict.fromkeys(UNREADY, "no worker is there for its model")),
        ({"health._stopping": True}, dict.fromkeys(["", *UNREADY], "it stops")),
    ],
)
async def test_what_goes_wrong_is_seen_where_it_does_and_that_it_is_over(
    changes: dict[str, Any], lost: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(no_books())
    assert bench.lost() == {}
    with monkeypatch.context() as change:
        for path, value in changes.items():
            part, name = path.split(".")
            change.setattr(getattr(bench, part), name, value)
        assert bench.lost() == {name: (reason,) for name, reason in lost.items()}
    assert bench.lost() == {}


async def test_a_door_that_is_full_is_no_room() -> None:
    bench = Bench(no_books())
    for _ in range(4):
        bench.server.num_turned_away += 1
        lost = bench.lost()
    assert lost == {"has-room": ("no room for calls",)}


async def test_a_gateway_that_runs_says_what_its_scheduler_says(gateway: Any, scheduler: Any) -> None:
    names = ("ready", "intact", "has-room")
    said = {"intact": ("1 of 2 workers not connected",), "has-room": ("no room for class batch",)}
    scheduler.health.tell(said)
    passed_on = {name: tuple(f"scheduler: {reason}" for reason in said.get(name, ())) for name in names}
    for expected in (passed_on, dict.fromkeys(names, ())):
        while await ask(gateway.channel, names, 20.0) != expected:  # noqa: ASYNC110 - it is another one's
            await asyncio.sleep(0.01)
        scheduler.health.tell(dict.fromkeys(said, ()))


class Database:
    """A ledger that can be written, or not."""

    def __init__(self) -> None:
        self.fail: BaseException | None = None
        self.held_up = threading.Event()
        self.held_up.set()

    def write(self, *_: Any) -> None:
        self.held_up.wait()
        if self.fail is not None:
            raise self.fail

    def create(self) -> None:
        self.write()

    def check(self, _: float) -> bool:
        return True

    def beat(self, _: str) -> int:
        self.write()
        return 0

    def end(self, _: str) -> int:
        return 0

    def forget(self, _: float) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_ledger_that_cannot_be_written_and_one_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SLOW_S", 0.3)
    database = Database()
    books = Books((database, tmp_path / "journal"), LedgerSettings(), "gateway-1", ())  # type: ignore[arg-type]
    bench = Bench(books)
    await books.start()
    assert bench.lost() == {}
    database.fail = LedgerError("is locked")
    books.refuse("", "", "m", "QUEUE_FULL", "")
    await until(lambda: bench.lost() == {"intact": ("its ledger cannot be written",)})
    database.fail = None
    await until(lambda: bench.lost() == {})
    database.held_up.clear()
    books.refuse("", "", "m", "QUEUE_FULL", "")
    await until(lambda: bench.lost() == {"intact": ("its ledger cannot be written",)})
    database.held_up.set()
    await until(lambda: bench.lost() == {})
    database.fail = SystemExit()
    books.refuse("", "", "m", "QUEUE_FULL", "")
    await until(lambda: "live" in bench.lost())
    database.fail = None
    await books.stop()
