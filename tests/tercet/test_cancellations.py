"""``tercet cancellations`` on a ledger in a file, and on a gateway."""

from __future__ import annotations

import csv
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tercet.cli.root import main
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Cancellation, Outcome, Row
from tercet.mesh_info import from_cancellation
from tercet.v1 import operations_pb2

Command = Callable[..., Result]


def row(number: int, tenant: str, *cancellations: Cancellation) -> Row:
    now = time.time()
    fields = ("interactive", "small", "v1", 1, now, Outcome.CANCELLED)
    return Row(number, f"r{number}", tenant, *fields, cancellations=cancellations)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path, now = tmp_path / "ledger.db", time.time()
    full = Cancellation(None, "client", now - 60, ("DECODE", "QUEUED"), 0.0, 0.0125, 0.025, 7, 1_234, 0.5)
    made = Ledger(str(path), time.time)
    made.create()
    rows = [
        row(1, "alice", full),
        row(2, "bob", Cancellation(1, "stop_string", now - 30)),
        row(3, "bob", dataclasses.replace(full, freed_s=0.0375, cancelled_at=now - 100_000)),
    ]
    made.write("one", rows, [])
    made.close()
    return path


@pytest.fixture
def cancellations(ledger: Path) -> Command:
    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(main, ["cancellations", "--ledger-database", str(ledger), *arguments])
        assert done.exit_code == 0, done.output
        return done

    return run


def test_a_table_for_people(cancellations: Command) -> None:
    head, bob, alice, old = (line.split() for line in cancellations().stdout.splitlines())
    assert head[:4] == ["when", "request", "tenant", "class"]
    assert bob[1:] == ["r2", "bob", "interactive", "1", "stop_string", *"-------"]
    assert alice[1:7] == ["r1", "alice", "interactive", "-", "client", "DECODE,QUEUED"]
    assert alice[7:] == ["0.0", "12.5", "25.0", "7", "1,234", "500.0"]
    assert old[1] == "r3"


def test_none(cancellations: Command) -> None:
    assert cancellations("--since", "1m", "--tenant", "alice").stdout == "none\n"
    assert cancellations("--origin", "operator", "--format", "csv").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--since", "1h"], ["r2", "r1"]),
        (["--origin", "client"], ["r1", "r3"]),
        (["--tenant", "bob"], ["r2", "r3"]),
        (["--limit", "1"], ["r2"]),
    ],
)
def test_what_is_asked_for(cancellations: Command, arguments: list[str], expected: list[str]) -> None:
    lines = cancellations("--format", "json", *arguments).stdout.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == expected
    rows = list(csv.DictReader(cancellations("--format", "csv", *arguments).stdout.splitlines()))
    assert [each["request_id"] for each in rows] == expected


def test_a_summary(cancellations: Command) -> None:
    client, stop = map(json.loads, cancellations("--summary", "--format", "json").stdout.splitlines())
    assert (client["origin"], client["count"], stop["origin"], stop["count"]) == ("client", 2, "stop_string", 1)
    assert (client["freed_p50_s"], client["freed_p99_s"], client["freed_max_s"]) == (0.0125, 0.0375, 0.0375)
    assert stop["freed_p50_s"] is None
    head, *rest = (line.split() for line in cancellations("--summary").stdout.splitlines())
    assert head[:2] == ["origin", "count"]
    assert rest[0][:5] == ["client", "2", "12.5", "37.5", "37.5"]


def test_by_default_it_reads_what_the_user_keeps(ledger: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path), "TERCET_LEDGER_DATABASE": None}
    (tmp_path / "tercet").mkdir()
    # There is none yet, so a gateway is asked, which is not there either.
    asked = ["cancellations", "--address", "127.0.0.1:1"]
    assert CliRunner().invoke(main, asked, env=env).exit_code == 1
    ledger.rename(tmp_path / "tercet" / "ledger.db")
    done = CliRunner().invoke(main, ["cancellations", "--format", "json"], env=env)
    assert [json.loads(line)["request_id"] for line in done.stdout.splitlines()] == ["r2", "r1", "r3"]
    # Who names a gateway asks it.
    assert CliRunner().invoke(main, asked, env=env).exit_code == 1
    assert CliRunner().invoke(main, [*asked, "--ledger-database", "none"], env=env).exit_code == 1


def test_without_a_gateway_the_error_says_so() -> None:
    done = CliRunner().invoke(main, ["cancellations", "--address", "127.0.0.1:1"])
    assert done.exit_code == 1


def test_what_a_gateway_says_is_what_the_ledger_would_say() -> None:
    told = operations_pb2.Cancellation(request_id="r", tenant="t", traffic_class="c", origin="client", cancelled_at=5.0)
    assert from_cancellation(told).cancellation == Cancellation(None, "client", 5.0)
    told = operations_pb2.Cancellation(
        origin="client", output_index=0, cancelled_at=5.0, states=["DECODE"], release_seconds=0.0, freed_seconds=1.0,
        done_seconds=2.0, blocks_freed=0, wasted_tokens=0, wasted_gpu_seconds=0.0,
    )  # fmt: skip
    expected = Cancellation(0, "client", 5.0, ("DECODE",), 0.0, 1.0, 2.0, 0, 0, 0.0)
    assert from_cancellation(told).cancellation == expected
