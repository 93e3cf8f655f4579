"""Tenants and classes that compete for one worker, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from outcomes import judge, prepared, settle

from scheduler import pool
from scheduler.actions import Release, ToWorker
from scheduler.admission import AdmissionMode
from scheduler.events import TenantsChanged
from scheduler.simulator.cost import StepCost
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import NamedPlan

# 10 ms a step and 0.2 ms a prompt token.
COST = StepCost(0.01, 2e-4)


def crowd(*plans: NamedPlan, caching: bool = True, **changes: Any) -> tuple[VirtualMesh, VirtualGateway]:
    """A mesh whose worker has four places, and tenants."""
    values = {"num_blocks": 400, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64, **changes}
    options = {"num_steps": 0, "admission_mode": AdmissionMode.OFF, "caching": caching}
    mesh, gateway = prepared(infos=[worker_info(**values)], costs=[COST], **options)
    if plans:
        mesh.post(TenantsChanged(gateway.number, 1, plans))
    return mesh, gateway


def tokens_until(calls: list[Call], moment: float) -> int:
    """Tokens of prompts and outputs that they had got."""
    begun = [call for call in calls if call.times and call.times[0] <= moment]
    prompts = sum(len(call.submission.prompt_token_ids) for call in begun)
    return prompts + sum(at <= moment for call in begun for at in call.times)


def test_a_flood_of_one_tenant_leaves_the_other_its_turns() -> None:
    mesh, gateway = crowd(NamedPlan("flood"), NamedPlan("quiet"))
    flood = [mesh.submit(gateway, submission(key, (1, 2, 3), 6, tenant="flood")) for key in range(150)]
    quiet: dict[float, Call] = {}
    for key in range(1000, 1008):
        asked = submission(key, (7, 8, 9), 6, tenant="quiet")
        mesh.at(0.2 + 0.2 * (key - 1000), lambda asked=asked: quiet.update({mesh.now: mesh.submit(gateway, asked)}))
    mesh.run(until=1.8)
    assert not flood[-1].times, "the flood was over"
    # It waits until one of four has ended, and is the next.
    assert max(call.times[0] - moment for moment, call in quiet.items()) < 0.1
    settle(mesh)
    for call in (*flood, *quiet.values()):
        judge(call)


def test_a_lone_tenant_has_the_worker_as_if_nothing_were_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    def commands() -> list[ToWorker]:
        """All that a worker with 64 places is sent for one that asks for more than it can do, and then for less."""
        mesh, gateway = crowd(NamedPlan("flood"), NamedPlan("silent"), max_num_seqs=64, num_blocks=600)
        rng = random.Random(1)
        for key in range(250):
            asked = submission(key, [key % 50] * rng.randrange(1, 60), rng.randrange(2, 40), tenant="flood")
            mesh.at(rng.random() * (1.0 if key < 200 else 9.0), lambda asked=asked: mesh.submit(gateway, asked))
        settle(mesh)
        return mesh.sent

    plain = commands()
    monkeypatch.setattr(pool, "OWED_STEPS", 0)
    assert plain == commands()
    assert len(plain) > 500


def test_what_a_tenant_asks_for_all_with_one_priority_comes_as_without_it() -> None:
    def commands(priority: int) -> list[ToWorker]:
        """All that a worker is sent for two tenants who ask for more than it can do."""
        mesh, gateway = crowd(NamedPlan("a"), NamedPlan("b"), num_blocks=60, max_num_seqs=12)
        rng = random.Random(1)
        for key in range(120):
            tenant, name = rng.choice("ab"), rng.choice(["interactive", "rag", "batch"])
            prompt = [rng.randrange(50) for _ in range(rng.randrange(1, 120 if name == "rag" else 30))]
            asked = submission(
                key,
                prompt,
                rng.randrange(2, 40),
                tenant=tenant,
                traffic_class=name,
                priority=priority if tenant == "a" else 0,
            )
            mesh.at(rng.random() * 4.0, lambda asked=asked: mesh.submit(gateway, asked))
        settle(mesh)
        return mesh.sent

    plain = commands(0)
    assert any(isinstance(each.command, Release) for each in plain)
    assert commands(-100) == plain


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_two_floods_get_tokens_by_their_weights(weight: float) -> None:
    mesh, gateway = crowd(NamedPlan("a"), NamedPlan("b", weight=weight), caching=False)
    # One of them with long prompts and short texts, the other one the other way round.
    of_a = [mesh.submit(gateway, submission(key, [1] * 40, 4, tenant="a")) for key in range(60)]
    of_b = [mesh.submit(gateway, submission(100 + key, [2] * 4, 40, tenant="b")) for key in range(60)]
    mesh.run(until=4.0)
    assert not of_a[-1].times
    assert not of_b[-1].times
    a, b = tokens_until(of_a, 4.0), tokens_until(of_b, 4.0)
    assert min(a, b) > 400
    # What four that run hold, and what one begins with.
    assert abs(a - b / weight) <= 5 * 44
    settle(mesh)
    for call in (*of_a, *of_b):
        judge(call)


def test_a_tenant_holds_no_more_blocks_than_its_share() -> None:
    plan = NamedPlan("part", kv_share=0.25)
    mesh, gateway = crowd(plan, NamedPlan("other"), num_blocks=80, max_num_seqs=8)
    for key in range(40):
        mesh.submit(gateway, submission(key, [key] * 16, 12, tenant="part"))
        mesh.submit(gateway, submission(100 + key, [key] * 16, 12, tenant="other"))
    (worker,) = mesh.core.workers
    most = dict.fromkeys(("part", "other"), 0)

    def watch() -> None:
        for tenant in most:
            mine = [key for key, each in worker.sequences.items() if each.request.tenant.tenant == tenant]
            most[tenant] = max(most[tenant], sum(map(worker.ledger.reserved, mine)))
        if not mesh.core.idle:
            mesh.at(mesh.now + 0.005, watch)

    watch()
    settle(mesh)
    # Three begin with five blocks and one to grow by each, and may grow to seven.
    assert 15 <= most["part"] <= 3 * 7
    assert most["other"] > 30


def test_who_grew_beyond_its_share_while_nobody_asked_gives_the_blocks_back() -> None:
    plans = NamedPlan("part", kv_share=0.1), NamedPlan("other")
    mesh, gateway = crowd(*plans, num_blocks=400, max_num_seqs=64, max_model_len=400)
    part = [mesh.submit(gateway, submission(key, [key % 50] * 4, 150, tenant="part")) for key in range(48)]
    other: list[Call] = []
    (worker,) = mesh.core.workers
    held: list[int] = []

    def ask() -> None:
        held.append(sum(map(worker.ledger.reserved, worker.sequences)))
        other.extend(mesh.submit(gateway, submission(500 + key, [key] * 40, 40, tenant="other")) for key in range(12))

    mesh.at(0.8, ask)
    settle(mesh)
    for call in (*part, *other):
        judge(call)
    # Of 40 that were granted.
    assert held[0] > 200
    gone = Counter(
        log.fields["request_id"] in {f"req-{500 + key}" for key in range(12)}
        for log in mesh.logs
        if log.event == "preempted"
    )
    assert gone[False] > 0
    assert gone[True] == 0
    # All of them run at once, while most of the tenant's wait.
    assert max(call.times[0] for call in other) < 1.5


def test_a_promise_at_stake_takes_a_place_and_who_made_room_comes_back_behind_it() -> None:
    mesh, gateway = crowd()
    batch = [mesh.submit(gateway, submission(key, [key] * 9, 100, traffic_class="batch")) for key in range(1, 5)]
    urgent: list[Call] = []
    mesh.at(0.2, lambda: urgent.append(mesh.submit(gateway, submission(9, (9, 9), 10))))
    settle(mesh)
    for call in (*batch, *urgent):
        judge(call)
    gone = [log.fields for log in mesh.logs if log.event == "preempted"]
    # One of them, once: the promise is half a second old then, and the place is its own until its end.
    assert [(fields["request_id"], fields["made_room"]) for fields in gone] == [("req-4", True)]
    assert 0.5 < urgent[0].times[0] - 0.2 < 0.6
    back = next(after for before, after in pairwise(batch[3].times) if after - before > 0.05)
    assert back > urgent[0].times[-1]


def test_nobody_makes_room_twice_without_a_token_between() -> None:
    mesh, gateway = crowd(max_num_seqs=2)
    batch = [mesh.submit(gateway, submission(key, [key] * 20, 100, traffic_class="batch")) for key in (1, 2)]
    urgent: list[Call] = []
    for key in range(10, 40):
        asked = submission(key, (3, 4), 12)
        mesh.at(0.09 * (key - 10), lambda asked=asked: urgent.append(mesh.submit(gateway, asked)))
    lengths: dict[str, list[int]] = {"req-1": [], "req-2": []}
    seen = 0

    def watch() -> None:
        nonlocal seen
        for log in mesh.logs[seen:]:
            if log.event == "preempted":
                lengths[log.fields["request_id"]].append(len(batch[log.fields["sequence_id"] - 1].tokens))
        seen = len(mesh.logs)
        if not mesh.core.idle:
            mesh.at(mesh.now + 0.0005, watch)

    watch()
    settle(mesh)
    for call in (*batch, *urgent):
        judge(call)
    assert sum(map(len, lengths.values())) >= 2
    for counts in lengths.values():
        assert len(set(counts)) == len(counts)
