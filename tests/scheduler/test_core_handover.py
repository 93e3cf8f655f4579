"""Requests that another scheduler had: they go on from where they are, and are asked nothing again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import judge, prepared, settle

from scheduler.admission import QueueBounds
from scheduler.events import Begun, TenantsChanged
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import WORKER_GRACE_S, VirtualMesh
from scheduler.simulator.small import GREEDY, submission, worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import TrafficClass


def handed_over(mesh: VirtualMesh, gateway: VirtualGateway, call: Call) -> Call:
    """The request goes on at that mesh, its gateway having seen what this call has."""
    begun = tuple(Begun(tuple(output.tokens), bool(output.ends)) for output in call.outputs)
    taken = mesh.submit(gateway, replace(call.submission, begun=begun if call.accepted else ()))
    for output, before in zip(taken.outputs, call.outputs, strict=True):
        output.ends += before.ends
    return taken


@settings(max_examples=60, deadline=None)
@given(
    asks=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(1, 3), st.booleans()), min_size=1, max_size=5
    ),
    moments=st.lists(st.floats(0.0, 0.3), min_size=1, max_size=3),
    num_blocks=st.integers(20, 40),
    seed=st.integers(0, 1_000),
)
def test_no_token_is_lost_told_twice_or_changed(
    asks: list[tuple[int, int, int, bool]], moments: list[float], num_blocks: int, seed: int
) -> None:
    """Wherever they are when their scheduler goes, as often as that happens."""
    infos = [worker_info(num_blocks=num_blocks, max_num_seqs=4)]
    mesh, gateway = prepared(infos=infos)
    calls = [
        mesh.submit(
            gateway,
            submission(
                key, range(length), max_tokens, n=n, sampling=replace(GREEDY, seed=seed + key),
                stop_token_ids=(7, 11, 13) if stops else (),
            ),
        )
        for key, (length, max_tokens, n, stops) in enumerate(asks, 1)
    ]  # fmt: skip
    for moment in moments:
        mesh.run(until=mesh.now + moment)
        before, (mesh, gateway) = calls, prepared(infos=infos)
        calls = [call if call.over else handed_over(mesh, gateway, call) for call in before]
    settle(mesh)
    for call in calls:
        judge(call)


def test_what_it_had_cost_is_counted_on() -> None:
    mesh, gateway = prepared()
    begun = Begun((1, 2), cached_tokens=3, queue_s=1.5, gpu_us=1e6, cpu_us=4e5)
    call = mesh.submit(gateway, submission(1, (4, 5, 6), 4, begun=(begun,)))
    settle(mesh)
    account = call.outputs[0].ends[0].account
    assert account.generated_tokens == 4
    assert account.cached_tokens == 3
    assert account.queue_us == 1_500_000
    assert account.gpu_us > 1_000_000
    # This worker has no GPU.
    assert account.cpu_us == account.gpu_us - 600_000


def test_it_passes_those_that_were_on_no_worker() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    calls = [mesh.submit(gateway, submission(key, (key, 1), 4)) for key in (1, 2)]
    calls.append(mesh.submit(gateway, submission(3, (3, 1), 4, begun=(Begun((5,)),))))
    settle(mesh)
    first, second, third = (call.times[-1] for call in calls)
    assert first < third < second


def test_neither_quota_nor_queue_refuses_it() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)], bounds=QueueBounds(1, 1_000))
    plan = NamedPlan("t", requests_per_minute=1, max_concurrent=1)
    mesh.post(TenantsChanged(gateway.number, 1, (plan,)))
    running = mesh.submit(gateway, submission(1, tenant="t"))
    refused = mesh.submit(gateway, submission(2, tenant="t"))
    taken = [mesh.submit(gateway, submission(key, tenant="t", begun=(Begun((5,)),))) for key in (3, 4)]
    settle(mesh)
    assert refused.refused == "TENANT_QUOTA"
    assert running.refused is None
    assert [call.refused for call in taken] == [None, None]


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        ({}, {"traffic_class": "nightly"}),
        ({"classes": ("batch",)}, {"traffic_class": "chat"}),
        ({"classes": ("gone",), "default_class": "gone"}, {}),
        ({"max_context": 4}, {}),
        ({"max_context": 4}, {"max_tokens_open": True}),
        ({"kv_share": 0.02}, {}),
    ],
)
def test_neither_its_class_nor_its_plan_is_asked_again(plan: dict[str, Any], fields: dict[str, Any]) -> None:
    """Both may have changed since another scheduler accepted it; who is new is refused for that, or gets less."""
    classes = (TrafficClass("chat", 0, 0.0), TrafficClass("batch", 2, 0.0))
    mesh, gateway = prepared(infos=[worker_info(num_blocks=64)], classes=classes)
    mesh.post(TenantsChanged(gateway.number, 1, (NamedPlan("t", **plan),)))
    taken = mesh.submit(gateway, submission(1, (1, 2, 3), 30, tenant="t", begun=(Begun((5, 6)),), **fields))
    new = mesh.submit(gateway, submission(2, (1, 2, 3), 30, tenant="t", **fields))
    settle(mesh)
    assert taken.refused is None
    # What the plan now allows of a length that was left open is reached already.
    num_tokens = 3 if "max_tokens_open" in fields else 30
    assert len(taken.tokens) == num_tokens
    assert new.refused is not None or len(new.tokens) == 1


def test_one_that_is_too_large_for_the_workers_there_are_waits_for_another() -> None:
    """The first worker that a scheduler finds may be the smaller one."""
    infos = [worker_info(num_blocks=4), worker_info(num_blocks=64)]
    mesh, gateway = prepared(infos=infos)
    goes_on, ends = (mesh.submit(gateway, submission(key, (1, 2), 60, begun=(Begun((5,)),))) for key in (1, 2))
    mesh.run(until=mesh.now + WORKER_GRACE_S / 2)
    assert (goes_on.accepted, goes_on.over) == (True, False)
    mesh.cancel(gateway, ends)
    mesh.attach_worker(1)
    settle(mesh)
    assert len(goes_on.tokens) == 60


def test_it_does_not_wait_for_ever() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=4)])
    call = mesh.submit(gateway, submission(1, (1, 2), 60, begun=(Begun((5,)),)))
    settle(mesh)
    assert [end.failure.reason for end in call.ends if end.failure] == ["WORKER_LOST"]


@pytest.mark.parametrize(
    ("n", "begun"),
    [(1, (Begun(()), Begun(()))), (2, (Begun((1,)),)), (1, (Begun((1,), ended=True),)), (1, (Begun((1,) * 8),))],
)
def test_what_cannot_be_is_refused(n: int, begun: tuple[Begun, ...]) -> None:
    mesh, gateway = prepared()
    call = mesh.submit(gateway, submission(1, n=n, begun=begun))
    settle(mesh)
    assert call.refused == "INVALID_FIELD"
