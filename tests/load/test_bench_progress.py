"""How a run is followed: lines in a file, a bar on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tercet.cli.bench_progress import ProgressLine
from tercet.load.progress import Progress
from tercet.load.workload import Workload
from tests.load.rows import sample

WORKLOAD = Workload(rates=(2.0, 4.0), duration_s=20.0)


def follow(console: Console) -> None:
    progress = Progress(tokens=300, outcomes={"refused": 2, "failed": 1})
    progress.ttft_ms.extend([100.0, 200.0, 900.0])
    with ProgressLine(WORKLOAD, console) as line:
        line.begin(0, 2.0)
        for second in range(1, 13):
            line.sample(sample(float(second)), progress)


def test_a_file_has_a_line_every_five_seconds() -> None:
    out = io.StringIO()
    follow(Console(file=out, width=40))
    lines = out.getvalue().splitlines()
    assert [line.partition(": 9 sent")[0] for line in lines] == [
        "1/2: 2 requests/s, 5 s",
        "1/2: 2 requests/s, 10 s",
    ]
    assert lines[0].endswith("9 sent, 5 running, 4 over, 2 refused, 1 failed, 60 tokens/s, first token 200 ms")


def test_a_terminal_has_a_bar() -> None:
    out = io.StringIO()
    follow(Console(file=out, width=160, force_terminal=True))
    assert "1/2: 2 requests/s" in out.getvalue()
    assert "first token 200 ms" in out.getvalue()
