"""``tercet explain`` on a ledger in a file, on plan logs in files, and on a gateway."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scheduler.admission import QueueBounds
from scheduler.core_settings import CoreSettings
from scheduler.events import GatewayAttached, Submitted, WorkerAttached
from scheduler.plan_log.recorder import recorded_core
from scheduler.policy import Policy
from scheduler.simulator.small import submission, worker_info
from tercet.cli.root import main
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome, RefusalKey, Refusals, Row, StageTimes

# Where nobody listens.
NOBODY = "127.0.0.1:1"
STAGES = StageTimes(0.01, 0.02, 0.01, 0.06, 2.0, 0.1, 0.4, 0.0, 0.1)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path, now = tmp_path / "ledger.db", time.time()
    made = Ledger(str(path), time.time)
    made.create()
    fields = ("interactive", "tiny", "r1", 1)
    ids = [("req-1", "", 20), ("req-22", "alice", 10), ("req-22", "bob", 10), ("other", "", 5)]
    rows = [
        Row(number, name, tenant, *fields, now - age, Outcome.COMPLETED, "stop", 9, total_s=2.7, stages=STAGES)
        for number, (name, tenant, age) in enumerate(ids)
    ]
    refused = Refusals(RefusalKey(int(now), "", "interactive", "tiny", "QUEUE_FULL"), 17, "no-room")
    made.write("one", rows, [refused])
    made.close()
    return path


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """One request of two outputs that is waiting for its first step."""
    core, recorder = recorded_core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(10, 1000)), 100)
    assert recorder is not None
    events = [
        GatewayAttached(1, "gateway-1"),
        WorkerAttached(2, "host:1", worker_info()),
        Submitted(1, submission(1, n=2)),
        Submitted(1, submission(3, max_tokens=1000)),
    ]
    for number, event in enumerate(events):
        recorder.note(float(number), [event], core.handle(event, float(number)))
    path = tmp_path / "plans.jsonl"
    path.write_bytes(b"".join(recorder.dump(4.0, time.time() - 16)))
    return path


@pytest.fixture
def run(ledger: Path) -> Callable[..., Result]:
    def call(*arguments: str, address: str = NOBODY, database: str = str(ledger)) -> Result:
        whole = ["explain", *arguments, "--ledger-database", database, "--address", address]
        return CliRunner().invoke(main, whole, env={"COLUMNS": "200"})

    return call


def test_by_both(run: Callable[..., Result], plans: Path) -> None:
    done = run("req-1", "--plans", str(plans))
    assert done.exit_code == 0, done.output
    first = done.stdout.splitlines()[0]
    assert first == "2 s of 2.7 s: waited in the scheduler's queue"
    assert "not known" not in done.stdout
    data = json.loads(run("req-1", "--plans", str(plans), "--json").stdout)
    assert sum(stage["seconds"] for stage in data["stages"]) == pytest.approx(data["total_s"])
    assert len(data["stories"][0]["outputs"]) == 2


@pytest.mark.parametrize("shown", ["chatcmpl-req-1", "cmpl-req-1", "chatcmpl-re"])
def test_the_id_of_an_answer_over_http_is_taken(run: Callable[..., Result], plans: Path, shown: str) -> None:
    done = run(shown, "--tenant", "", "--plans", str(plans), "--json")
    if shown == "chatcmpl-re":
        assert "2 requests begin with 'chatcmpl-re'" in done.stderr
    else:
        assert json.loads(done.stdout)["request_id"] == "req-1"


def test_without_a_mesh_the_ledger_is_enough(run: Callable[..., Result]) -> None:
    done = run("oth")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("2 s of 2.7 s: waited in the scheduler's queue\n")
    assert done.stdout.count("not known: ") == 1
    assert "not known: what the scheduler did: GATEWAY_LOST: no gateway answers at 127.0.0.1:1" in done.stdout
    assert "--plans a file of tercet dump-plans" in done.stdout


def test_without_a_ledger_the_plan_log_is_enough(run: Callable[..., Result], plans: Path, tmp_path: Path) -> None:
    done = run("req-1", "--plans", str(plans), database=str(tmp_path / "nothing.db"))
    assert done.exit_code == 0, done.output
    assert "so far: its prompt of 3 tokens was computed" in done.stdout.splitlines()[0]
    assert done.stdout.count("not known: ") == 1
    assert "not known: what the gateway saw" in done.stdout
    assert "nothing.db is not there" in done.stdout
    assert run("req-1", "--plans", str(plans), database="none").exit_code == 0


def test_one_that_the_scheduler_refused(run: Callable[..., Result], plans: Path) -> None:
    done = run("req-3", "--plans", str(plans))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("refused: PROMPT_TOO_LONG: ")


def test_what_begins_like_several_is_listed(run: Callable[..., Result]) -> None:
    done = run("req-2")
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["req-22", "alice"], ["req-22", "bob"]]
    assert done.stderr == "tercet: 2 requests begin with 'req-2'; say more of the id, or --tenant\n"
    assert run("req-2", "--tenant", "bob").exit_code == 0


def test_what_is_not_there_says_where_it_was_looked(run: Callable[..., Result]) -> None:
    done = run("nobody")
    assert done.exit_code == 1
    assert "no request is known whose id begins with 'nobody'" in done.stderr
    assert "not looked at: what the scheduler did: " in done.stderr
    done = run("no-ro")
    assert done.exit_code == 1
    assert "no-room was refused: QUEUE_FULL" in done.stderr
    assert "17 of that second were alike" in done.stderr


def test_a_file_that_is_no_plan_log_is_one_line(run: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "strange"
    path.write_text("strange\n")
    done = run("req-1", "--plans", str(path))
    assert (done.exit_code, done.stderr) == (2, f"tercet: {path}: line 1: this is no file of tercet dump-plans\n")
    done = run("req-1", "--plans", str(tmp_path / "nowhere"))
    assert (done.exit_code, done.stderr) == (2, f"tercet: cannot read {tmp_path}/nowhere: No such file or directory\n")


def test_nothing_is_no_id(run: Callable[..., Result]) -> None:
    assert run("").exit_code == 2


@pytest.mark.parametrize("words", [["a\udcff"], ["req-1", "--tenant", "a\udcff"]])
def test_bytes_that_are_no_text_are_no_id_and_no_tenant(run: Callable[..., Result], words: list[str]) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert "is not UTF-8" in done.output
