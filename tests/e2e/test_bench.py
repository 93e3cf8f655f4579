"""`tercet bench run` against a real mesh, over both of its edges: the same work, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.load.folder import Run, read_run

from .conftest import LIMIT_S, ROOT, Mesh, free_port

pytestmark = pytest.mark.e2e

LOAD = (
    "--input", "uniform:8-40", "--output", "uniform:3-6", "--arrivals", "burst:4", "--rate", "4", "--requests", "12",
    "--ignore-eos",
)  # fmt: skip


def bench(out: Path, *words: str) -> Run:
    line = [sys.executable, "-m", "tercet", "bench", "run", *LOAD, *words, "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "first token" in done.stdout
    return read_run(out)


def test_both_edges_are_asked_the_same(own_mesh: Callable[..., Mesh], tmp_path: Path) -> None:
    port = free_port()
    mesh = own_mesh(TERCET_GATEWAY_HTTP_PORT=str(port))
    mesh.start()
    grpc = bench(tmp_path / "grpc", "--address", mesh.address)
    http = bench(tmp_path / "http", "--openai", f"http://127.0.0.1:{port}/v1")
    for run in (grpc, http):
        (point,) = run.summary.points
        assert (point.outcomes["completed"], point.cached_tokens) == (12, 0)
        for row in run.rows:
            assert row.sent_s is not None
            assert row.due_s - 1e-3 <= row.sent_s <= (row.first_s or 0.0) <= (row.last_s or 0.0) <= (row.end_s or 0.0)
            assert (row.output_tokens, row.reason) == (row.max_tokens, "length")
    assert [(row.prompt_tokens, row.max_tokens, row.due_s) for row in grpc.rows] == [
        (row.prompt_tokens, row.max_tokens, row.due_s) for row in http.rows
    ]
    assert grpc.summary.environment["server"]["workers"][0]["kv_blocks"] > 0
    assert [each.server.workers[0].live for each in grpc.samples if each.server is not None] != []
    assert all(row.queue_s is not None for row in grpc.rows)

    # Clients that go away leave nothing behind.
    left = bench(tmp_path / "left", "--address", mesh.address, "--cancel-ratio", "1", "--processes", "2")
    assert {row.outcome for row in left.rows} <= {"cancelled", "completed"}
    assert sum(row.outcome == "cancelled" for row in left.rows) >= 10
    mesh.wait_idle()
