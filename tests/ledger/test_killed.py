"""Processes that write and are killed at any moment, one after the other: what they had said is there is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.slow_disk import SlowDisk, find_compiler
from tercet.ledger.adopter import adopt
from tercet.ledger.journal import find_journals
from tercet.ledger.ledger import Ledger
from tercet.ledger.row import Outcome

from .test_ledger import stored

ROOT = Path(__file__).resolve().parents[2]
LIVES = 4
# Each opens and closes rows, and says so behind each: "1 open" and then "1 completed".
PROGRAM = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    import structlog
    from tercet.ledger import journal
    from tercet.ledger.ledger import Ledger
    from tercet.ledger.row import Outcome, Row
    from tercet.ledger.writer import Writer

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    path, instance = Path(sys.argv[1]), sys.argv[2]
    # Its files change places all the time.
    journal.TURN_BYTES = 2_000
    writer = Writer(Ledger(str(path), time.time), path, instance, 0.0, lambda rows: None)
    writer.start()
    for number in range(1, 1_000_000):
        for outcome in (Outcome.OPEN, Outcome.COMPLETED):
            writer.put(Row(number, f"r{number}", "alice", "", "small", "v1", 1, 1_764_500_000.0, outcome))
            print(number, outcome.value, flush=True)
        time.sleep(0.0005)
""")


@pytest.mark.parametrize("slow", [False, True])
def test_what_was_said_is_there(slow: bool, tmp_path: Path, open_ledger: Callable[[str], Ledger]) -> None:
    path, rng = tmp_path / "ledger.db", random.Random(5)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if slow:
        if find_compiler() is None:
            pytest.skip("needs a C compiler")
        disk = SlowDisk(tmp_path, "ledger.db")
        environment.update(disk.environment)
        disk.set_delay(20)
    said: dict[tuple[str, int], str] = {}
    for life in range(LIVES):
        instance = f"life-{life}"
        command = [sys.executable, "-c", PROGRAM, str(path), instance]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
            for line in (first, *process.stdout):
                # The last one may be cut off.
                if line.endswith("\n"):
                    number, outcome = line.split()
                    said[instance, int(number)] = outcome
    ledger = open_ledger(str(path))
    adopt(path, ledger)
    found = {key: row.outcome for key, row in stored(ledger).items()}
    assert said
    for key, outcome in said.items():
        if outcome == Outcome.OPEN.value:
            # Its end may have been there before it was said.
            assert found[key] in (Outcome.LOST, Outcome.COMPLETED)
        else:
            assert found[key] is Outcome.COMPLETED
    # What was not said is one at most of each life; and nobody is open any more.
    assert len(found) <= len(said) + LIVES
    assert Outcome.OPEN not in found.values()
    assert find_journals(path) == []
