"""What holds for every test."""

import atexit
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import settings

import tercet.grpc_core  # noqa: F401 - before gRPC

# No test writes into the home of whoever runs it. Those that keep a ledger say where.
_STATE = tempfile.mkdtemp(prefix="tercet-state-")
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = _STATE

# How long an example takes says how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Of a test that starts processes, on a machine that is busy with other things as well.
E2E_TIMEOUT_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start processes may take longer."""
    for item in items:
        if item.get_closest_marker("e2e") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_S))


# Tests in whose files processes of a mesh are started, and those that want a GPU for themselves.
WITH_PROCESSES = ("tests/e2e/", "tests/examples/", "tests/faults/", "tests/fuzz/", "tests/tercet/test_up.py")
_WITH_A_DEVICE = ("tests/worker/test_cuda_",)


def queue_of(test: str) -> str:
    """Tests of a queue, by their ids, run one after the other: those of a file, which share what they make; those of
    several processes, which want both CPUs; those of a device."""
    for files in (WITH_PROCESSES, _WITH_A_DEVICE):
        if test.startswith(files):
            return files[0]
    return test.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Queues are begun in the order of their first tests."""
    from xdist.scheduler import LoadScopeScheduling

    class Queues(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return queue_of(nodeid)

    config.option.loadscopereorder = False
    return Queues(config, log)
