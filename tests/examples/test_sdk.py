"""The programs of the SDK's page run as written, and print what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tercet.client import DEFAULT_ADDRESS, Client, Retry
from tercet.errors import GatewayLostError
from tests.e2e.conftest import ROOT, Mesh

pytestmark = pytest.mark.e2e

PAGE = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
# Each with what is printed, if that follows.
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", PAGE, re.MULTILINE | re.DOTALL)


def test_there_is_something_to_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") >= 6
    assert sum(bool(printed) for _, printed in PROGRAMS) >= 4


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(mesh: Mesh, number: int) -> None:
    program, printed = PROGRAMS[number]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(DEFAULT_ADDRESS, mesh.address)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in ("", done.stdout)
    mesh.wait_idle()


@pytest.fixture(scope="module")
def small_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One request runs, and one may wait."""
    settings = {"TERCET_WORKER_MAX_NUM_SEQS": "1", "TERCET_SCHEDULER_MAX_QUEUED_REQUESTS": "1"}
    running = Mesh(tmp_path_factory.mktemp("small"), settings)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_a_mesh_that_is_full_serves_all_who_ask_again(small_mesh: Mesh) -> None:
    # As many attempts as it takes.
    patient = Retry(attempts=1000, longest_s=60)
    with Client(small_mesh.address, retry=patient, timeout_s=120) as client, ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda seed: client.generate("Once", seed=seed, max_tokens=8, ignore_eos=True).answer(), range(16))
        )
        refused = sum(sum(each.counts.refused.values()) for each in client.traffic().classes)
    assert [answer.finished.usage.completion_tokens for answer in answers] == [8] * 16
    assert [answer.accepted.seed for answer in answers] == list(range(16))
    assert refused > 0


def test_who_asks_again_outlives_the_gateway(small_mesh: Mesh) -> None:
    patient = Retry(attempts=1000, first_s=0.1, longest_s=1.0)
    with Client(small_mesh.address, retry=patient, timeout_s=120) as client, ThreadPoolExecutor(1) as pool:
        begun = client.generate("Once", max_tokens=4000, ignore_eos=True)
        events = iter(begun)
        next(events)
        small_mesh.kill("gateway")
        # What has begun is lost, what has not is not.
        with pytest.raises(GatewayLostError):
            list(events)
        asking = pool.submit(lambda: client.generate("Once", max_tokens=8, ignore_eos=True).answer())
        small_mesh.start("gateway")
        assert asking.result(120).finished.usage.completion_tokens == 8
