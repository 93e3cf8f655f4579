"""The kernels' thread pool, through the kernels: it has no other face."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from worker import _core
from worker.ops.linear import Linear


@pytest.fixture(autouse=True)
def _same_number_after() -> Iterator[None]:
    before = _core.num_threads()
    yield
    _core.set_num_threads(before)


def test_sizes() -> None:
    for count in (1, 3, 2, 1):
        _core.set_num_threads(count)
        assert _core.num_threads() == count
    for bad in (0, -1, 1025):
        with pytest.raises(ValueError, match=f"is {bad}"):
            _core.set_num_threads(bad)
    assert _core.num_threads() == 1


def test_everything_is_computed_once_by_more_threads_than_cpus() -> None:
    linear = Linear(torch.eye(256))
    x = torch.randn(64, 256)
    for count in (2, 7, 32):
        _core.set_num_threads(count)
        for _ in range(50):
            assert torch.equal(linear(x), x)


def test_many_short_jobs_in_a_row() -> None:
    """A worker that wakes late for one job must take nothing of the next."""
    _core.set_num_threads(4)
    small, large = Linear(torch.eye(192)), Linear(torch.eye(512))
    x, y = torch.randn(1, 192), torch.randn(8, 512)
    for _ in range(3000):
        assert torch.equal(small(x), x)
        assert torch.equal(large(y), y)


def test_callers_on_several_threads_take_turns() -> None:
    _core.set_num_threads(3)
    linear = Linear(torch.eye(256))
    right: list[int] = []

    def call(number: int) -> None:
        x = torch.full((16, 256), float(number))
        right.append(sum(torch.equal(linear(x), x) for _ in range(200)))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert right == [200] * 4


def test_a_process_ends_cleanly_with_its_workers_spinning_or_asleep() -> None:
    program = (
        "import time, torch\n"
        "from worker import _core\n"
        "from worker.ops.linear import Linear\n"
        "_core.set_num_threads(4)\n"
        "Linear(torch.eye(512))(torch.ones(64, 512))\n"
        "time.sleep({})\n"
    )
    for idle_s in (0, 0.05):
        done = subprocess.run([sys.executable, "-c", program.format(idle_s)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_instruction_sets() -> None:
    best = _core.isa()
    _core.set_isa("portable")
    assert _core.isa() == "portable"
    _core.set_isa(best)
    assert _core.isa() == best
    with pytest.raises(ValueError, match="'sse9' is not usable here"):
        _core.set_isa("sse9")
    program = "from worker import _core; print(_core.isa())"
    environment = {**os.environ, "TERCET_ISA": "portable"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["portable"]
