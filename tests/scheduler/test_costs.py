"""What steps cost is borne by those they were for, whatever becomes of these: nothing is lost, and nothing made up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from scheduler.events import StepReported
from scheduler.simulator.gateway import Call
from scheduler.simulator.mesh import VirtualMesh, submission
from scheduler.simulator.small import worker_info


class Counted(VirtualMesh):
    """A mesh that adds up how long the steps were that workers reported, on GPUs and on others."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.step_us: Counter[bool] = Counter()

    def post(self, event: object) -> None:
        if isinstance(event, StepReported) and event.link in self.workers and (event.sequence_ids or event.prefills):
            self.step_us[self.workers[event.link].info.device == "cpu"] += event.step_us
        super().post(event)  # type: ignore[arg-type]


def account_of(call: Call) -> tuple[int, int]:
    """Microseconds of the request, and of these on workers without a GPU."""
    done = [each.account for each in call.cancels_done if each.account is not None]
    accounts = done or [output.ends[0].account for output in call.outputs]
    return sum(each.gpu_us for each in accounts), sum(each.cpu_us for each in accounts)


@pytest.mark.parametrize("seed", range(6))
def test_all_parts_are_all_steps_on_either_kind_of_worker(seed: int) -> None:
    rng = random.Random(seed)
    infos = [worker_info(device=device, num_blocks=24) for device in ("cpu", "cuda:0", "cpu")]
    mesh = Counted(infos, seed=seed, delay=0.0)
    gateway = mesh.attach_gateway()
    workers = [mesh.attach_worker(index) for index in range(3)]
    calls = []
    for key in range(1, 25):
        asked = submission(key, [rng.randrange(50) for _ in range(rng.randrange(1, 30))], rng.randrange(1, 25))
        mesh.at(rng.random(), lambda asked=asked: calls.append(mesh.submit(gateway, asked)))
    # One that is lost, one that stops, some that are cancelled: what they had got stays theirs.
    mesh.at(0.4, lambda: mesh.lose_worker(workers[0]))
    mesh.at(0.6, lambda: mesh.drain_worker(workers[1], 0.5))
    mesh.at(0.5, lambda: [mesh.cancel(gateway, call) for call in calls[:4] if not call.over])
    mesh.run()
    assert all(call.over for call in calls)
    accepted = [call for call in calls if call.accepted]
    assert len(accepted) > 15
    gpu_us, cpu_us = (sum(each) for each in zip(*map(account_of, accepted), strict=True))
    total = mesh.step_us.total()
    # Each account is rounded by itself.
    assert gpu_us == pytest.approx(total, abs=len(accepted) + 1)
    assert cpu_us == pytest.approx(mesh.step_us[True], abs=len(accepted) + 1)
    assert 0 < cpu_us < gpu_us


def test_what_is_known_so_far_is_what_the_end_says_at_least() -> None:
    mesh = VirtualMesh()
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    call = mesh.submit(gateway, submission(1, (1, 2, 3), 30))
    mesh.submit(gateway, submission(2, (1, 2, 3), 30))
    assert mesh.core.costs_so_far(99).accounts == ()
    mesh.run(0.15)
    costs = dict(mesh.core.costs_so_far(1).accounts)
    assert set(costs) == {1, 2}
    assert costs[1].gpu_us > 0
    mesh.run()
    assert call.ends[0].account.gpu_us > costs[1].gpu_us
    assert mesh.core.costs_so_far(1).accounts == ()
