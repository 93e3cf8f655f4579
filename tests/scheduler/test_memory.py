"""However many sequences there have been, nothing of them is left when they have ended."""

from __future__ import annotations

import gc
import random
import tracemalloc
from pathlib import Path

import pytest
from recorded import record

import scheduler
from scheduler import calibration, traffic
from scheduler.events import TimePassed
from scheduler.lifecycle import State
from scheduler.plan_log.recorder import Recorder
from scheduler.sequence import Sequence
from scheduler.simulator.cost import StepCost
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.simulator.text import VOCAB

# Half a minute of a processor.
pytestmark = pytest.mark.timeout(280)

PACKAGE = Path(scheduler.__file__).parent
REQUESTS = 300
ROUNDS = 400
# A number has twice that.
MOST_BYTES_PER_SEQUENCE = 16


def live(mesh: VirtualMesh, number: int) -> int:
    """A wave of requests through a new gateway, with all that can happen to them, until everything has ended; the same
    each time but for the ids. Returns how many sequences that were."""
    rng = random.Random(1)
    gateway = mesh.attach_gateway(number)
    begin = mesh.now
    num_sequences = 0

    def arrive(key: int) -> None:
        nonlocal num_sequences
        n = rng.choice([1, 1, 2])
        num_sequences += n
        call = mesh.submit(
            gateway,
            submission(
                key,
                [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))],
                rng.randrange(1, 40),
                n=n,
                # Some in the middle, most far ahead.
                deadline_s=rng.choice([None, 0.1, 1e6]),
                prefix_salt=rng.choice([b"", b"tenant"]),
                traffic_class=rng.choice(["", "batch"]),
            ),
        )
        if rng.random() < 0.2:
            mesh.at(mesh.now + rng.random() * 0.2, lambda: mesh.cancel(gateway, call))
        elif rng.random() < 0.2:
            mesh.at(mesh.now + rng.random() * 0.2, lambda: mesh.stop(gateway, call))

    for key in range(REQUESTS):
        mesh.at(begin + key * 0.004, lambda key=key: arrive(key))  # type: ignore[misc]
    for blow in range(20):
        mesh.at(begin + (blow + 0.5) * REQUESTS * 0.004 / 20, lambda: lose_a_worker(mesh))
    mesh.run()
    mesh.lose_gateway(gateway)
    del mesh.gateways[number]
    assert mesh.core.idle
    return num_sequences


def lose_a_worker(mesh: VirtualMesh) -> None:
    """One comes in its place."""
    worker = mesh.workers[min(mesh.workers)]
    mesh.lose_worker(worker)
    mesh.attach_worker(mesh.infos.index(worker.info))


def forget(mesh: VirtualMesh, tape: Recorder) -> None:
    """The recorder keeps the last rounds, whatever they hold: these hold nothing. It ends where a segment begins."""
    for _ in range(2 * ROUNDS):
        mesh.post(TimePassed())
    while tape._segments[-1].rounds:
        mesh.post(TimePassed())


def growth() -> float:
    """Bytes for each sequence of the last two of five waves: of what the scheduler's own lines have allocated and is
    still there when all has ended."""
    with pytest.MonkeyPatch.context() as patch:
        # What is learned of many requests, and counted for a minute, has to be full after two waves.
        patch.setattr(calibration, "MAX_RATIOS", 8)
        patch.setattr(calibration, "MAX_ERRORS", 8)
        patch.setattr(traffic, "RECENT_SPANS", 1)
        return _growth()


def _growth() -> float:
    sizes = {"num_blocks": 24, "max_num_seqs": 8, "num_swap_blocks": 6, "swap_block_ns": 1}
    mesh = VirtualMesh(
        [worker_info(worker_id=f"worker-{index}", **sizes) for index in range(2)],
        num_steps=0,
        costs=[StepCost(0.002, 1e-4)] * 2,
        audited=False,
        recorded=False,
        verify=False,
    )
    tape = record(mesh, ROUNDS)
    for index in range(2):
        mesh.attach_worker(index)
    own = [tracemalloc.Filter(True, f"{PACKAGE}/*"), tracemalloc.Filter(False, f"{PACKAGE}/simulator/*")]
    left = []
    num_sequences = 0
    tracemalloc.start()
    try:
        for wave in range(5):
            num_sequences = live(mesh, 1 + wave)
            forget(mesh, tape)
            gc.collect()
            statistics = tracemalloc.take_snapshot().filter_traces(own).statistics("filename")
            left.append(sum(each.size for each in statistics))
    finally:
        tracemalloc.stop()
    view = mesh.core.view()
    assert view.preemptions > view.swaps > 0
    # What is there varies a little, as with the sequences that were put on a worker last. What is bounded is full after
    # two waves.
    return (min(left[3:]) - min(left[1:3])) / (2 * num_sequences)


def test_nothing_of_a_sequence_is_left() -> None:
    assert growth() < MOST_BYTES_PER_SEQUENCE


def test_the_least_that_could_be_left_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    become, ended = Sequence.become, []

    def remembered(sequence: Sequence, state: State) -> None:
        become(sequence, state)
        if state is State.FINISHED:
            ended.append(sequence.sequence_id)

    monkeypatch.setattr(Sequence, "become", remembered)
    assert growth() > MOST_BYTES_PER_SEQUENCE
