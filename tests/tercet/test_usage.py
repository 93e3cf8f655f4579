"""``tercet usage`` on a ledger in a file."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tercet.cli.root import main
from tercet.cli.usage import to_moment
from tercet.ledger.ledger import Ledger, day_of
from tercet.ledger.row import Outcome, RefusalKey, Refusals, Row
from tercet.ledger.usage import SUMS

HOUR_S = 3_600.0
Command = Callable[..., Result]


def row(number: int, tenant: str, hours_ago: float, outcome: Outcome = Outcome.COMPLETED) -> Row:
    return Row(
        number, f"r{number}", tenant, "interactive", "small", "v1", 1, time.time() - hours_ago * HOUR_S, outcome,
        prompt_tokens=1_000, generated_tokens=12, delivered_tokens=10, wasted_tokens=2, gpu_s=0.5, cost=0.25, slo="met",
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    made = Ledger(str(path), time.time)
    made.create()
    rows = [row(1, "alice", 1), row(2, "alice", 40 * 24), row(3, "bob", 30), row(4, "bob", 2, Outcome.CANCELLED)]
    made.write("one", rows, [Refusals(RefusalKey(int(time.time()) - 60, "bob", "", "small", "QUEUE_FULL"), 7, "r")])
    made.close()
    return path


@pytest.fixture
def usage(ledger: Path) -> Command:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["usage", "--ledger-database", str(ledger), *arguments])

    return run


def test_a_table_for_people(usage: Command) -> None:
    done = usage()
    assert done.exit_code == 0
    head, alice, bob = (line.split() for line in done.stdout.splitlines())
    assert head[:3] == ["tenant", "requests", "completed"]
    # Thirty days, unless it is said otherwise; what nobody has there is no column.
    assert alice[:3] == ["alice", "1", "1"]
    assert bob[:3] == ["bob", "9", "1"]
    assert "lost" not in head
    assert "2,000" in bob
    assert all(line == line.rstrip() or len(line) < 400 for line in done.stdout.splitlines())


def test_csv_and_json_say_the_same(usage: Command) -> None:
    by = ("--by", "tenant,outcome,day", "--since", "60d")
    table = list(csv.DictReader(usage(*by, "--format", "csv").stdout.splitlines()))
    objects = [json.loads(line) for line in usage(*by, "--format", "json").stdout.splitlines()]
    assert len(table) == len(objects) == 5
    for one, other in zip(table, objects, strict=True):
        assert one == {name: "" if value is None else str(value) for name, value in other.items()}
        assert list(other) == ["tenant", "outcome", "day", *SUMS, "cost_per_1000", "cost_per_qualified"]
    assert {each["day"] for each in objects} >= {day_of(time.time() - HOUR_S)}
    assert sum(each["requests"] for each in objects) == 11


def test_what_idle_workers_cost(usage: Command) -> None:
    # 1.5 s of steps for 0.75, of two workers that were there for 50 hours.
    done = usage("--since", "50h", "--until", "0m", "--workers", "2")
    assert done.exit_code == 0, done.output
    *_, line = done.stdout.splitlines()
    assert line.startswith("2 workers were there for 100.00 hours; steps took 0.0004167, 0.0% of them; the rest costs ")
    assert "180,0" in line or "179,9" in line
    refused = usage("--workers", "2", "--format", "csv")
    assert refused.exit_code == 2
    assert "--workers adds a line to the table" in refused.output


def test_times_are_dates_and_ages(usage: Command) -> None:
    def requests(*arguments: str) -> int:
        done = usage("--by", "", "--format", "json", *arguments)
        assert done.exit_code == 0, done.output
        return int(json.loads(done.stdout)["requests"])

    assert requests("--since", "2000-01-01") == 11
    assert requests("--since", "36h", "--until", "90m") == 2
    assert requests("--since", "36h") == 10
    assert requests("--since", "2000-01-01", "--until", "2000-01-02T03:04:05+02:00") == 0


def test_moments_are_in_utc_unless_they_say_where() -> None:
    read = [to_moment(each) for each in ("1970-01-02", "1970-01-02T00:00Z", "1970-01-02T02:00+02:00")]
    assert read == [86_400.0] * 3
    assert to_moment("2h", lambda: 1_000_000.0) == 1_000_000.0 - 7_200
    for wrong in ("", "yesterday", "2h30m", "-1d", "1y", "9" * 30 + "d", "99999-01-01"):
        with pytest.raises(click.BadParameter):
            to_moment(wrong)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--by", "tenant,user"), "there is no 'user'; there are tenant, class, model, day, outcome"),
        (("--by", "day,day"), "names something twice"),
        (("--since", "soon"), "neither a date"),
        (("--format", "xml"), "xml"),
    ],
)
def test_what_cannot_be_is_refused(usage: Command, arguments: tuple[str, ...], problem: str) -> None:
    done = usage(*arguments)
    assert done.exit_code == 2
    assert problem in done.output


def test_without_a_ledger_it_says_how_to_name_one(tmp_path: Path) -> None:
    for word in ("none", ""):
        done = CliRunner().invoke(main, ["usage", "--ledger-database", word])
        assert done.exit_code == 2
        assert "ledger.database: is none: give --ledger-database FILE, or TERCET_LEDGER_DATABASE" in done.output
    absent = CliRunner().invoke(main, ["usage", "--ledger-database", str(tmp_path / "absent.db")])
    assert absent.exit_code == 2
    assert "is not there; a gateway that starts makes it" in absent.output


def test_by_default_it_is_that_of_the_user(ledger: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "TERCET_LEDGER_DATABASE": None}
    before = CliRunner().invoke(main, ["usage"], env=env)
    assert before.exit_code == 2
    assert f"{tmp_path}/state/tercet/ledger.db is not there; a gateway that starts makes it" in before.output
    (tmp_path / "state" / "tercet").mkdir(parents=True)
    ledger.rename(tmp_path / "state" / "tercet" / "ledger.db")
    after = CliRunner().invoke(main, ["usage", "--since", "2020-01-01", "--format", "json", "--by", ""], env=env)
    assert json.loads(after.output)["requests"] > 0
