"""The scheduler under the loads that have brought others down, on the virtual clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import judge, plans, prepared, refusals_for, settle

from scheduler.actions import Release, ReleaseCause
from scheduler.admission import AdmissionMode
from scheduler.events import EndReason, Event, SequenceReleased
from scheduler.policy import Policy
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import GREEDY, submission, worker_info
from scheduler.simulator.text import VOCAB


class WatchedMesh(VirtualMesh):
    """Looks at the mesh after every event: nobody may wait for workers that have nothing to do.

    `waited`: how often somebody did wait when it looked.
    """

    waited = 0

    def _flush(self) -> None:
        super()._flush()
        view = self.core.view()
        live = [worker for worker in view.workers if worker.live and not worker.draining]
        self.waited += view.requests_waiting > 0
        assert not (live and view.requests_waiting and not view.requests_running), "they wait for nothing"


def test_a_request_larger_than_the_pool_is_refused_while_others_proceed() -> None:
    # 64 slots in the pool, 128 in the context.
    mesh, gateway = prepared(infos=[worker_info(num_blocks=16)])
    before = [mesh.submit(gateway, submission(key, (key, 2), 30)) for key in range(1, 5)]
    mesh.run(until=0.05)
    large = mesh.submit(gateway, submission(10, [1] * 60, 5))
    assert large.refused == "KV_NEVER_FITS"
    many = mesh.submit(gateway, submission(11, [1] * 6, 60, n=7))
    behind = [mesh.submit(gateway, submission(key, (key, 2), 30)) for key in range(20, 24)]
    settle(mesh)
    for call in [*before, *behind]:
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    assert many.refused == "KV_NEVER_FITS"


def watch(rng: random.Random) -> int:
    """Some workers under some load. Returns how often somebody waited."""
    block_size = rng.choice([1, 4, 8])
    num_blocks = -(-rng.randint(30, 120) // block_size)
    info = worker_info(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(1, 24),
        max_model_len=64,
        num_swap_blocks=rng.choice([0, num_blocks]),
    )
    infos = [info] * rng.randint(1, 3)
    mesh = WatchedMesh(
        infos,
        num_steps=rng.choice([0, 1, 4, 32]),
        seed=rng.randrange(2**16),
        costs=[StepCost(0.01, 1e-3)] * len(infos),
        delay=rng.choice([0.0, 0.002, 0.03]),
        batching=rng.random() < 0.5,
        admission_mode=AdmissionMode.OFF,
    )
    gateway = mesh.attach_gateway()
    for index in range(len(mesh.infos)):
        mesh.attach_worker(index)
    calls: list[Call] = []

    def arrive(key: int) -> None:
        asked = submission(
            key,
            [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))],
            rng.randrange(1, 30),
            n=rng.choice([1, 1, 1, 2]) if info.max_num_seqs > 1 and info.max_num_batched_tokens > 1 else 1,
            traffic_class=rng.choice(["", "rag", "batch"]),
            priority=rng.choice([-5, 0, 5]),
            sampling=replace(GREEDY, seed=rng.randrange(99)),
        )
        call = mesh.submit(gateway, asked)
        calls.append(call)
        if rng.random() < 0.3:
            mesh.at(mesh.now + rng.random() * 0.3, lambda: mesh.cancel(gateway, call))

    spread = rng.choice([0.01, 1.0])
    for key in range(rng.randint(5, 30)):
        mesh.at(rng.random() * spread, lambda key=key: arrive(key))  # type: ignore[misc]
    settle(mesh)
    for call in calls:
        judge(call, refusals=refusals_for(call.submission, info))
    return mesh.waited


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_nobody_waits_for_workers_that_have_nothing_to_do(rng: random.Random) -> None:
    watch(rng)


def test_in_these_loads_there_are_those_who_wait() -> None:
    waited = [watch(random.Random(seed)) for seed in range(20)]
    assert sum(times > 20 for times in waited) >= 10


@pytest.mark.parametrize(
    ("policy", "largest_gap"), [(Policy(0, 0), 0.05), (Policy(8, 0), 0.05), (Policy(0, 64), 0.016)]
)
def test_long_prompts_do_not_stretch_the_streams_beside_them(policy: Policy, largest_gap: float) -> None:
    info = worker_info(block_size=16, num_blocks=1200, max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=8000)
    mesh = VirtualMesh([info], policy=policy, costs=[StepCost(0.004, 100e-6)])
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    streams = [mesh.submit(gateway, submission(key, (key, 2, 3), 500)) for key in range(1, 9)]
    long: list[Call] = []
    for key, at in ((20, 0.3), (21, 0.35)):
        asked = submission(key, [key] * 7000, 3)
        mesh.at(at, lambda asked=asked: long.append(mesh.submit(gateway, asked)))
    settle(mesh)
    for call in [*streams, *long]:
        judge(call)
    gaps = [after - before for call in streams for before, after in pairwise(call.times)]
    # A step, and messages of at most 1 ms.
    assert max(gaps) <= largest_gap + 0.004 + 0.001
    # The prompts were there while they streamed, and took more than a step.
    assert max(gaps) > 0.008
    assert min(call.times[0] for call in long) < max(call.times[-1] for call in streams)


def test_who_gives_way_and_how_often_is_on_record() -> None:
    reports: Counter[str] = Counter()

    class CountedMesh(VirtualMesh):
        def post(self, event: Event) -> None:
            if isinstance(event, SequenceReleased):
                reports["released"] += event.found
                reports["swapped"] += event.swapped
            super().post(event)

    info = worker_info(num_blocks=20, num_swap_blocks=6, swap_block_ns=1)
    mesh = CountedMesh([info], num_steps=8, costs=[StepCost(0.01, 1e-3)])
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    calls = {
        key: mesh.submit(gateway, submission(key, (key, 2, 3), 40, traffic_class=traffic_class, priority=priority))
        for key, (traffic_class, priority) in enumerate(
            [("batch", 0), ("interactive", 0), ("interactive", 5), ("batch", 5), ("rag", 0), ("interactive", -5)], 1
        )
    }
    settle(mesh)
    for call in calls.values():
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    view = mesh.core.view()
    given_way = [each.command for each in mesh.sent if isinstance(each.command, Release)]
    assert all(release.cause in (ReleaseCause.PREEMPT, ReleaseCause.SWAP) for release in given_way)
    victims = [sequence_id for release in given_way for sequence_id in release.sequence_ids]
    assert view.preemptions == len(victims) == reports["released"] > 0
    assert view.swaps == reports["swapped"] > 0
    finished = {log.fields["request_id"]: log.fields for log in mesh.logs if log.event == "request_finished"}
    losses = Counter(victims)
    for key, call in calls.items():
        assert finished[f"req-{key}"]["preemptions"] == losses[call.sequence_ids[0]]
    # The most urgent one never gives way; the first to do so is of the class that can wait.
    assert not losses[calls[6].sequence_ids[0]]
    assert victims[0] in calls[1].sequence_ids + calls[4].sequence_ids


@pytest.mark.parametrize("num_steps", [0, 8, 32])
def test_a_plan_longer_than_what_is_asked_for_runs_no_step_for_nothing(num_steps: int) -> None:
    mesh, gateway = prepared(num_steps=num_steps)
    short = [mesh.submit(gateway, submission(key, (key, 2, 3), key)) for key in range(1, 5)]
    settle(mesh)
    for call in short:
        judge(call)
    (worker,) = mesh.workers.values()
    # They start together: as many steps as the longest needs, and one for each that started later.
    assert worker.steps_run <= 4 + 3
    assert all(plan.num_steps <= 4 for plan in plans(mesh))


@pytest.mark.parametrize("num_steps", [4, 32])
def test_a_stop_in_mid_plan_frees_the_slot_at_once(num_steps: int) -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=2)], num_steps=num_steps)
    long = mesh.submit(gateway, submission(1, (1, 2, 3), 100))
    # The small model's answer, cut at its fifth token.
    expected, _ = Call(submission(2, (2, 2, 3), 60)).expected()
    assert expected.index(expected[4]) == 4
    stopped = mesh.submit(gateway, submission(2, (2, 2, 3), 60, stop_token_ids=(expected[4],)))
    next_one = mesh.submit(gateway, submission(3, (3, 2, 3), 5))
    settle(mesh)
    for call in (long, stopped, next_one):
        judge(call)
    assert stopped.ends[0].reason is EndReason.STOP
    assert len(stopped.tokens) == 5
    assert next_one.times[0] <= stopped.times[-1] + 2 * mesh.step_time + 0.003
    assert len(long.tokens) == 100


@pytest.mark.parametrize("num_blocks", [40, 24])
@pytest.mark.parametrize("chunk", [4, 16])
def test_many_outputs_of_a_long_prompt_share_it(num_blocks: int, chunk: int) -> None:
    info = worker_info(num_blocks=num_blocks, max_num_batched_tokens=chunk, max_num_seqs=4)
    mesh, gateway = prepared(infos=[info], num_steps=8)
    calls = [mesh.submit(gateway, submission(key, [key] * 50, 20, n=4)) for key in (1, 2)]
    settle(mesh)
    for call in calls:
        judge(call)
        assert [len(output.tokens) for output in call.outputs] == [20] * 4
        assert len({tuple(output.tokens) for output in call.outputs}) == 4
        # All had their first token in one step.
        assert len({output.times[0] for output in call.outputs}) == 1
    # Blocks of 4: 12 full ones of the prompt, shared, and what each output has of its own.
    if num_blocks == 40:
        assert mesh.core.view().preemptions == 0


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_fault_ends_what_it_hit_and_nothing_else(steps: int) -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_batched_tokens=10)], num_steps=4)
    hit, other = (mesh.submit(gateway, submission(key, [key] * 20, 10, n=3)) for key in (1, 2))
    (worker,) = mesh.workers.values()
    mesh.run(until=steps * mesh.step_time + 0.005)
    alone = not worker.sequences[hit.sequence_ids[0]].forks
    worker.failing.add(hit.sequence_ids[0])
    settle(mesh)
    judge(other)
    assert [output.ends[0].reason for output in other.outputs] == [EndReason.LENGTH] * 3
    failed = [output.ends[0].reason is EndReason.FAILED for output in hit.outputs]
    # In prefill those that wait to be forked fail with it.
    assert alone is (steps > 2)
    assert failed == ([True, False, False] if alone else [True] * 3)
    assert {output.ends[0].failure.reason for output in hit.outputs if output.ends[0].failure} == {"ENGINE_FAULT"}
