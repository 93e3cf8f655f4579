"""Plans as they are made for a worker whose steps take time: their lengths, the gaps between tokens, who gives way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from outcomes import judge, plans, prepared, releases, settle

from scheduler.actions import NewSequence, Plan, ReleaseCause, Resume
from scheduler.admission import AdmissionMode
from scheduler.plan_length import LEAST_STEPS, MAX_STEPS, least_steps
from scheduler.policy import Policy
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.traffic_class import CLASSES

ADAPTIVE = Policy(0, 0)
# 2 ms, 50 us a token: a chunk of 960 tokens makes a step of 50 ms.
GPU_LIKE = StepCost(2e-3, 5e-5, 1e-9)


def large(**changes: Any) -> Any:
    """A worker with room for long prompts."""
    values = {
        "block_size": 16,
        "num_blocks": 2000,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 8192,
        "max_model_len": 16_384,
    }
    return worker_info(**{**values, **changes})


def streaming(cost: StepCost = GPU_LIKE, **options: Any) -> tuple[VirtualMesh, VirtualGateway]:
    values: dict[str, Any] = {"infos": [large()], "costs": [cost], "policy": ADAPTIVE, "delay": 0.0002}
    return prepared(**{**values, **options})


def gaps(call: Call) -> list[float]:
    return [after - before for before, after in pairwise(call.times)]


@pytest.mark.parametrize("base_ms", [2.0, 20.0])
def test_plans_grow_while_it_is_quiet_and_are_short_again_after_an_arrival(base_ms: float) -> None:
    mesh, gateway = streaming(StepCost(base_ms / 1e3, 1e-6))
    mesh.submit(gateway, submission(1, max_tokens=600))
    arrival = 300 * base_ms / 1e3
    sent_before: list[int] = []

    def arrive() -> None:
        sent_before.append(len(plans(mesh)))
        mesh.submit(gateway, submission(2, max_tokens=300))

    mesh.at(arrival, arrive)
    settle(mesh)
    before, after = plans(mesh)[: sent_before[0]], plans(mesh)[sent_before[0] :]
    longest = min(MAX_STEPS, int(0.25 / (base_ms / 1e3)))
    assert before[-1].num_steps in (longest, longest - 1)
    lengths = [plan.num_steps for plan in before]
    # Once the time of a step is known they only grow, to no more than double.
    lengths = [steps for steps in lengths if steps >= least_steps(base_ms / 1e3)]
    assert len(lengths) > len(before) / 2
    assert all(a <= b <= 2 * a + 1 for a, b in pairwise(lengths))
    # The arrival revokes what is in flight and starts small.
    assert after[0].revoke_through
    assert after[0].num_steps <= max(LEAST_STEPS, least_steps(base_ms / 1e3))
    assert after[3].num_steps < longest


def test_the_first_token_does_not_wait_for_a_long_plan() -> None:
    mesh, gateway = streaming()
    mesh.submit(gateway, submission(1, max_tokens=2000))
    late: list[Call] = []
    mesh.at(2.0, lambda: late.append(mesh.submit(gateway, submission(2, max_tokens=10))))
    settle(mesh)
    # The step that runs, its own, and the messages.
    assert late[0].times[0] - 2.0 <= 2 * GPU_LIKE.seconds(3, 3000) + 3 * 0.0002


def test_a_fixed_length_is_obeyed() -> None:
    mesh, gateway = streaming(policy=Policy(16, 0))
    mesh.submit(gateway, submission(1, max_tokens=200))
    settle(mesh)
    assert {plan.num_steps for plan in plans(mesh)[:-2]} == {16}


@pytest.mark.parametrize("stranded", [False, True])
def test_plans_end_with_the_first_end_for_who_waits_there_but_not_for_who_waits_for_another_worker(
    stranded: bool,
) -> None:
    sizes = {"max_num_seqs": 2, "block_size": 16, "max_model_len": 4096}
    infos = [worker_info(num_blocks=2000, **sizes), worker_info(num_blocks=90, **sizes)]
    mesh, gateway = prepared(infos=infos, costs=[StepCost(5e-3)] * 2, policy=ADAPTIVE)
    mesh.submit(gateway, submission(1, [1] * 20, 1500 if stranded else 1000))
    mesh.attach_worker(1)
    mesh.lose_worker(mesh.workers[1])
    short, long = (mesh.submit(gateway, submission(key, max_tokens=tokens)) for key, tokens in ((2, 150), (3, 1200)))
    mesh.run(until=0.1)
    (pool,) = mesh.core._mesh.fleet.pools.values()
    assert (len(pool.waiting), len(pool.stranded)) == (1, int(stranded))
    assert bool(long.times) == stranded
    quiet = len(plans(mesh))
    while not short.over:
        mesh.run(until=mesh.now + 0.001)
        assert mesh.now < 2
    lengths = [plan.num_steps for plan in plans(mesh)[quiet:]]
    assert max(lengths) == MAX_STEPS
    assert (lengths == sorted(lengths)) == stranded


@pytest.mark.parametrize("num_steps", [0, 32])
def test_fewer_tokens_than_steps_end_the_plan(num_steps: int) -> None:
    mesh, gateway = streaming(policy=Policy(num_steps, 0))
    calls = [mesh.submit(gateway, submission(key, max_tokens=3)) for key in (1, 2)]
    settle(mesh)
    for call in calls:
        judge(call)
        assert len(call.tokens) == 3
    assert all(plan.num_steps <= 3 for plan in plans(mesh))


@pytest.mark.parametrize("num_steps", [0, 16])
def test_a_long_prompt_does_not_starve_streams(num_steps: int) -> None:
    mesh, gateway = streaming(policy=Policy(num_steps, 0, max_mixed_step_s=0.02))
    streams = [mesh.submit(gateway, submission(key, [key] * 40, 1500)) for key in range(1, 5)]
    # Something to learn from: what a prompt beside streams costs.
    mesh.at(0.5, lambda: mesh.submit(gateway, submission(5, [5] * 300, 4)))
    long: list[Call] = []
    mesh.at(1.0, lambda: long.append(mesh.submit(gateway, submission(6, [6] * 7000, 4))))
    settle(mesh)
    judge(long[0])
    for stream in streams:
        judge(stream)
        assert max(gaps(stream)) <= 0.02 * 1.3
        assert median(gaps(stream)) <= 0.0025
    # It advances all the same: 360 tokens in 20 ms.
    assert long[0].times[0] - 1.0 <= 7000 / 360 * 0.02 * 1.5


def test_prefill_beside_streams_is_cautious_before_step_times_are_known() -> None:
    mesh, gateway = streaming()
    mesh.submit(gateway, submission(1, max_tokens=100))
    mesh.at(0.004, lambda: mesh.submit(gateway, submission(2, [2] * 1000, 4)))
    settle(mesh)
    chunks = [count for plan in plans(mesh) for sequence_id, count in plan.chunks if sequence_id == 2]
    assert chunks[0] == 128
    assert sum(chunks) == 1000


LONG = {"num_blocks": 3000, "max_num_batched_tokens": 2048, "max_model_len": 40_000}


@pytest.mark.parametrize("num_steps", [0, 4])
def test_a_long_prefill_that_can_wait_lets_an_urgent_newcomer_pass(num_steps: int) -> None:
    mesh, gateway = streaming(infos=[large(**LONG)], policy=Policy(num_steps, 0))
    batch = mesh.submit(gateway, submission(1, [1] * 30_000, 4, traffic_class="batch"))
    urgent: list[Call] = []
    for key, at in ((2, 0.25), (3, 0.65)):
        mesh.at(at, lambda key=key: urgent.append(mesh.submit(gateway, submission(key, [key] * 3, 10))))  # type: ignore[misc]
    settle(mesh)
    for call in (batch, *urgent):
        judge(call)
    # The step that runs, its own short one, and the messages: not the fifteen that the long one needs.
    for call, at in zip(urgent, (0.25, 0.65), strict=True):
        assert call.times[0] - at <= GPU_LIKE.seconds(2048, 30_000) + 1.1 * ADAPTIVE.max_mixed_step_s + 3 * 0.0002
        assert call.times[-1] < batch.times[0]


def test_a_prefill_that_others_pass_has_its_turn_when_it_has_waited_long_enough() -> None:
    mesh, gateway = streaming(infos=[large(**LONG)], admission_mode=AdmissionMode.OFF)
    # It lets those pass whose first token is due before its own is; each of them fills a step, and one comes with every
    # step.
    patient = mesh.submit(gateway, submission(1, [1] * 30_000, 1, traffic_class="rag"))
    step = GPU_LIKE.seconds(2048, 2048)
    others: list[Call] = []
    for key in range(2, 120):
        asked = submission(key, [key % 50] * 2047, 1, prefix_salt=bytes([key]))
        mesh.at(key * step, lambda asked=asked: others.append(mesh.submit(gateway, asked)))  # type: ignore[misc]
    settle(mesh)
    for call in (patient, *others):
        judge(call)
    assert 4.0 < patient.times[0] < 4.0 + 17 * step
    passed = [call for call in others if call.times[0] < patient.times[0]]
    assert 10 < len(passed) < len(others)


def test_a_prefill_without_a_promise_lets_promises_pass_however_long_it_has_waited() -> None:
    hasty = [CLASSES["interactive"], CLASSES["rag"], replace(CLASSES["batch"], patience_s=0.5)]
    infos = [large(**{**LONG, "max_num_seqs": 2})]
    mesh, gateway = streaming(infos=infos, classes=hasty, admission_mode=AdmissionMode.OFF)
    names = ("interactive", "rag")
    running = [mesh.submit(gateway, submission(len(name), [1] * 3, 30_000, traffic_class=name)) for name in names]
    patient = mesh.submit(gateway, submission(1, [3] * 30_000, 1, traffic_class="batch"))
    mesh.run(until=3.0)
    assert not patient.times
    for call in running:
        mesh.cancel(gateway, call)
    mesh.run(until=mesh.now + 0.1)
    assert sum(isinstance(sent.command, NewSequence) for sent in mesh.sent) == 3
    urgent = mesh.submit(gateway, submission(2, [4] * 3, 1))
    came = mesh.now
    settle(mesh)
    assert urgent.times[0] < came + 2 * GPU_LIKE.seconds(2048, 30_000)
    assert urgent.times[0] < patient.times[0]


def test_a_prompt_alone_is_not_capped() -> None:
    mesh, gateway = streaming()
    mesh.submit(gateway, submission(1, [1] * 7000, 4))
    settle(mesh)
    assert plans(mesh)[0].chunks == ((1, 7000),)


def tight(swap_block_ns: int, num_swap_blocks: int = 64) -> tuple[VirtualMesh, list[Call]]:
    """Three sequences on a worker where two fit to the end; the third has to give way late."""
    info = worker_info(
        num_blocks=36, num_swap_blocks=num_swap_blocks, swap_block_ns=swap_block_ns, max_num_batched_tokens=64
    )
    mesh, gateway = prepared(infos=[info], costs=[StepCost(1e-3, 1e-3)], policy=ADAPTIVE)
    calls = [mesh.submit(gateway, submission(key, [key] * 10, 60)) for key in (1, 2, 3)]
    settle(mesh)
    return mesh, calls


def test_blocks_are_swapped_where_that_is_cheaper() -> None:
    # A token computed again takes 1 ms, a block of four moved there and back 20 us.
    mesh, calls = tight(swap_block_ns=10_000)
    assert releases(mesh, ReleaseCause.SWAP)
    assert not releases(mesh, ReleaseCause.PREEMPT)
    assert sum(isinstance(action.command, Resume) for action in mesh.sent) == len(releases(mesh, ReleaseCause.SWAP))
    assert sum(isinstance(action.command, NewSequence) for action in mesh.sent) == 3
    for call in calls:
        judge(call)


@pytest.mark.parametrize(("swap_block_ns", "num_swap_blocks"), [(10_000_000, 64), (10_000, 0), (10_000, 2)])
def test_blocks_are_computed_again_where_that_is_cheaper_or_there_is_no_room(
    swap_block_ns: int, num_swap_blocks: int
) -> None:
    mesh, calls = tight(swap_block_ns, num_swap_blocks)
    assert releases(mesh, ReleaseCause.PREEMPT)
    assert not releases(mesh, ReleaseCause.SWAP)
    for call in calls:
        judge(call)


def test_the_class_that_may_wait_gives_way() -> None:
    info = worker_info(num_blocks=36, max_num_batched_tokens=64)
    mesh, gateway = prepared(infos=[info], policy=ADAPTIVE)
    classes = ["batch", "interactive", "interactive"]
    calls = [mesh.submit(gateway, submission(key, [key] * 10, 60, traffic_class=classes[key - 1])) for key in (1, 2, 3)]
    settle(mesh)
    for call in calls:
        judge(call)
    victims = [sequence_id for release in releases(mesh, ReleaseCause.PREEMPT) for sequence_id in release.sequence_ids]
    assert victims[0] == 1
    assert 2 not in victims


def test_a_group_is_one_new_sequence_and_one_join() -> None:
    mesh, gateway = streaming()
    call = mesh.submit(gateway, submission(1, [1] * 100, 20, n=4))
    settle(mesh)
    judge(call)
    news = [action.command for action in mesh.sent if isinstance(action.command, NewSequence)]
    assert [[fork for fork, _ in new.forks] for new in news] == [[2, 3, 4]]
    assert [plan.join for plan in plans(mesh) if plan.join] == [(1,)]
    # The plan runs on past the step that forks.
    first = next(action.command for action in mesh.sent if isinstance(action.command, Plan))
    assert first.chunks == ((1, 100),)


def test_a_group_waits_until_it_can_start_whole() -> None:
    mesh, gateway = streaming(infos=[large(max_num_seqs=4)])
    for key in (1, 2):
        mesh.submit(gateway, submission(key, max_tokens=40))
    group = mesh.submit(gateway, submission(3, max_tokens=10, n=3))
    settle(mesh)
    judge(group)
    assert group.times[0] > 40 * 0.002


def test_forks_that_do_not_fit_to_the_end_give_way_one_by_one() -> None:
    info = worker_info(num_blocks=30, max_num_batched_tokens=64)
    mesh, gateway = prepared(infos=[info], policy=ADAPTIVE)
    call = mesh.submit(gateway, submission(1, [1] * 22, 60, n=4))
    settle(mesh)
    judge(call)
    assert [len(output.tokens) for output in call.outputs] == [60] * 4
    assert releases(mesh, ReleaseCause.PREEMPT)


def test_a_full_worker_fills_a_place_as_it_frees() -> None:
    mesh, gateway = streaming(infos=[large(max_num_seqs=2)])
    mesh.submit(gateway, submission(1, max_tokens=500))
    second = mesh.submit(gateway, submission(2, max_tokens=101))
    third = mesh.submit(gateway, submission(3, max_tokens=5))
    settle(mesh)
    assert third.times[0] - second.times[-1] <= 3 * 0.002 + 4 * 0.0002


def test_a_newcomers_plan_goes_alone_and_the_worker_never_waits_for_the_next() -> None:
    mesh, gateway = streaming(StepCost(2e-3))
    stream = mesh.submit(gateway, submission(1, max_tokens=900))
    sent: list[int] = []

    def arrive(key: int) -> None:
        before = len(plans(mesh))
        mesh.submit(gateway, submission(key, max_tokens=50))
        sent.append(len(plans(mesh)) - before)

    for key in range(2, 8):
        mesh.at(0.5 + 0.1 * key, lambda key=key: arrive(key))  # type: ignore[misc]
    settle(mesh)
    assert sent == [1] * 6
    # A step, and what messages differ by: no gap has room for a worker that waits.
    assert max(gaps(stream)) <= 0.002 + 2 * 0.0002
