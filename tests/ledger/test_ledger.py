"""What is written into the ledger is there once, and what nobody closes is closed: in SQLite and PostgreSQL."""

from __future__ import annotations

import dataclasses
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tercet.errors import LedgerError
from tercet.ledger import ledger as ledger_module
from tercet.ledger import tables
from tercet.ledger.ledger import LEASE_S, Ledger, day_of
from tercet.ledger.row import GATEWAY_LOST, Outcome, Row, StageTimes

from .rows import refusals, row

ByHand = Callable[..., list[tuple[Any, ...]]]

FULL = row(
    2**40, Outcome.COMPLETED, reason="stop", outputs=3, prompt_tokens=11, cached_tokens=4, generated_tokens=2**33,
    delivered_tokens=7, wasted_tokens=1, queue_s=0.25, ttft_s=0.5, tpot_s=0.125, largest_gap_s=1.5, total_s=2.0,
    gpu_s=1e-6, cost=0.1, slo="met", request_id="x" * 128, cpu_s=5e-7,
    takeovers=2, stages=StageTimes(0.001, 0.002, 0.003, 0.004, 0.25, 0.24, 1.0, 0.25, 0.25), arrived_at=1.75e9,
)  # fmt: skip


def stored(ledger: Ledger) -> dict[tuple[str, int], Row]:
    """All rows, by instance and number."""
    names = [field.name for field in dataclasses.fields(Row) if field.name not in ("stages", "cancellations")]
    stages = [field.name for field in dataclasses.fields(StageTimes)]
    found = {}
    for each in ledger.read(sa.select(tables.requests)):
        values = {name: getattr(each, name) for name in names}
        assert each.day == day_of(each.arrived_at)
        values["stages"] = StageTimes(**{name: getattr(each, name) for name in stages})
        found[each.instance, each.number] = Row(**{**values, "outcome": Outcome(each.outcome)})
    return found


def refused(ledger: Ledger) -> dict[tuple[str, str, str], int]:
    query = sa.select(tables.refusals)
    return {(each.instance, each.tenant, each.reason): each.count for each in ledger.read(query)}


def test_a_row_is_read_back_as_it_was_written(ledger: Ledger) -> None:
    rows = [FULL, row(1), row(2, Outcome.LOST, generated_tokens=None)]
    ledger.write("one", rows, [])
    assert stored(ledger) == {("one", each.number): each for each in rows}


def test_what_is_written_twice_is_there_once_and_the_last_word_counts(ledger: Ledger) -> None:
    ledger.write("one", [row(1), row(2)], [refusals(3)])
    ledger.write("one", [row(1), row(2)], [refusals(3)])
    last = row(1, Outcome.COMPLETED, generated_tokens=5)
    ledger.write("one", [last], [refusals(5), refusals(1, tenant="bob")])
    # Another gateway counts by itself.
    ledger.write("two", [row(1)], [refusals(7)])
    assert stored(ledger) == {("one", 1): last, ("one", 2): row(2), ("two", 1): row(1)}
    assert refused(ledger) == {
        ("one", "alice", "QUEUE_FULL"): 5,
        ("one", "bob", "QUEUE_FULL"): 1,
        ("two", "alice", "QUEUE_FULL"): 7,
    }


def test_a_batch_is_written_as_a_whole_or_not_at_all(ledger: Ledger) -> None:
    broken = dataclasses.replace(row(2), tenant=None)  # type: ignore[arg-type]
    with pytest.raises(LedgerError):
        ledger.write("one", [row(1), broken, row(3)], [])
    assert stored(ledger) == {}


def test_the_rows_of_a_gateway_that_is_silent_are_closed(ledger: Ledger, by_hand: ByHand) -> None:
    for name in ("dead", "alive", "watching"):
        assert ledger.beat(name) == 0
        ledger.write(name, [row(1), row(2, Outcome.FAILED, reason="ENGINE_FAULT")], [])
    assert ledger.beat("watching") == 0
    by_hand("UPDATE gateways SET seen_at = seen_at - :silent WHERE instance = 'dead'", silent=LEASE_S + 1)
    assert ledger.beat("watching") == 1
    assert ledger.beat("alive") == 0
    found = stored(ledger)
    assert (found["dead", 1].outcome, found["dead", 1].reason) == (Outcome.LOST, GATEWAY_LOST)
    assert found["dead", 2].reason == "ENGINE_FAULT"
    assert found["alive", 1].outcome is found["watching", 1].outcome is Outcome.OPEN
    assert by_hand("SELECT instance FROM gateways WHERE ended_at IS NOT NULL") == [("dead",)]


def test_one_that_was_silent_for_too_long_has_the_last_word_on_its_rows(ledger: Ledger, by_hand: ByHand) -> None:
    ledger.beat("slow")
    ledger.write("slow", [row(1), row(2)], [])
    by_hand("UPDATE gateways SET seen_at = seen_at - :silent", silent=LEASE_S + 1)
    assert ledger.beat("other") == 2
    assert ledger.beat("slow") == 0
    ledger.write("slow", [row(1, Outcome.COMPLETED)], [])
    assert {key: each.outcome for key, each in stored(ledger).items()} == {
        ("slow", 1): Outcome.COMPLETED,
        ("slow", 2): Outcome.LOST,
    }
    # It is one of the living again.
    assert by_hand("SELECT instance FROM gateways WHERE ended_at IS NULL ORDER BY 1") == [("other",), ("slow",)]


def test_a_gateway_that_ends_leaves_nothing_open(ledger: Ledger) -> None:
    for name in ("one", "two"):
        ledger.beat(name)
        ledger.write(name, [row(1), row(2, Outcome.COMPLETED)], [])
    assert ledger.end("one") == 1
    assert ledger.end("one") == 0
    found = stored(ledger)
    assert [found["one", 1].outcome, found["one", 2].outcome] == [Outcome.LOST, Outcome.COMPLETED]
    assert found["two", 1].outcome is Outcome.OPEN


def test_what_is_too_old_is_forgotten_piece_by_piece(
    ledger: Ledger, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "FORGET_ROWS", 2)
    ledger.beat("one")
    ledger.beat("gone")
    ledger.end("gone")
    (now,) = {each[0] for each in by_hand("SELECT max(seen_at) FROM gateways")}
    old, young = now - 10.1 * 86_400, now - 9.9 * 86_400
    done = Outcome.COMPLETED
    ledger.write(
        "one",
        [
            row(1, done, arrived_at=old), row(2, done, arrived_at=old), row(3, done, arrived_at=old),
            row(4, done, arrived_at=young), row(5, arrived_at=old),
        ],
        [refusals(9, int(old)), refusals(8, int(young))],
    )  # fmt: skip
    by_hand("UPDATE gateways SET ended_at = :old WHERE instance = 'gone'", old=old)
    deleted = []
    while deleted[-1:] != [0]:
        deleted.append(ledger.forget(10.0))
    assert deleted == [4, 1, 0]
    # What has not ended stays, however old.
    assert {number for _, number in stored(ledger)} == {4, 5}
    assert list(refused(ledger).values()) == [8]
    assert by_hand("SELECT instance FROM gateways") == [("one",)]


def test_several_gateways_write_and_make_it_at_the_same_time(where: str, open_ledger: Callable[[str], Ledger]) -> None:
    problems: list[BaseException] = []
    start = threading.Barrier(4)

    def in_the_end(write: Callable[..., object], *what: object) -> None:
        # As writers do: SQLite has no queue, and on a slow disk one of four may be passed for longer than it waits.
        while True:
            try:
                write(*what)
            except LedgerError as error:
                if "locked" not in str(error):
                    raise
            else:
                return

    def work(name: str) -> None:
        try:
            mine = open_ledger(where)
            start.wait()
            in_the_end(mine.create)
            in_the_end(mine.beat, name)
            for number in range(20):
                in_the_end(mine.write, name, [row(number), row(number + 100)], [refusals(number + 1)])
                in_the_end(mine.write, name, [row(number, Outcome.COMPLETED)], [])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(f"gateway-{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    found = stored(open_ledger(where))
    assert len(found) == 4 * 40
    assert sum(each.outcome is Outcome.COMPLETED for each in found.values()) == 4 * 20
    assert list(refused(open_ledger(where)).values()) == [20] * 4


def test_only_its_owner_reads_the_file(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    made = open_ledger(str(tmp_path / "ledger.db"))
    made.create()
    made.write("one", [row(1)], [])
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("oracle://tercet:secret@host/x", "is of oracle; the ledger is kept by sqlite or postgresql|not installed"),
        ("://", "neither a path nor a SQLAlchemy URL"),
        ("sqlite://", "must be a file"),
        ("/nowhere/ledger.db", "No such file"),
    ],
)
def test_where_no_ledger_can_be_is_said(where: str, problem: str, open_ledger: Callable[[str], Ledger]) -> None:
    with pytest.raises(LedgerError, match=problem) as caught:
        open_ledger(where).create()
    assert "secret" not in str(caught.value)
    assert caught.value.key == "ledger.database"


def spoil(file: Path, page: int) -> None:
    """One page of the file has nothing of use in it any more."""
    with file.open("r+b") as opened:
        opened.seek(page * 4096)
        opened.write(b"\xff" * 4096)


def test_it_is_looked_whether_it_is_whole(where: str, ledger: Ledger) -> None:
    ledger.write("one", [row(number) for number in range(500)], [])
    assert ledger.check(60.0)
    if ledger.file is None:
        return
    # What is in its journal yet would be written over it.
    ledger.close()
    spoil(ledger.file, ledger.file.stat().st_size // 4096 - 1)
    # What asks for nothing that is there does not notice.
    ledger.beat("one")
    with pytest.raises(LedgerError, match=f"{where} is damaged|malformed"):
        ledger.check(60.0)


def test_what_is_too_large_is_not_looked_through(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    made = open_ledger(str(tmp_path / "ledger.db"))
    made.create()
    made.write("one", [row(number) for number in range(5_000)], [])
    # A look that begins late may be over in time.
    while made.check(0.001):
        pass
    assert len(stored(made)) == 5_000
    assert made.check(60.0)


def test_a_copy_put_back_under_an_old_wal_is_noticed(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    file, wal = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    made = open_ledger(str(file))
    made.create()
    made.write("one", [row(number) for number in range(300)], [])
    # All of it goes from the WAL into the file.
    made.close()
    copy = file.read_bytes()
    made.write("one", [row(number) for number in range(300, 900)], [])
    made.close()
    made.write("one", [row(number) for number in range(900, 1_000)], [])
    # As a gateway that is killed leaves it.
    left = wal.read_bytes()
    made.close()
    file.write_bytes(copy)
    wal.write_bytes(left)
    with pytest.raises(LedgerError, match=r"damaged|malformed"):
        made.check(60.0)
    made.close()
    # Put back as docs/ledger.md tells.
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    file.write_bytes(copy)
    assert made.check(60.0)
    assert len(stored(made)) == 300


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    (tmp_path / "x").write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError, match="file is not a database"):
        open_ledger(str(tmp_path / "x")).create()
