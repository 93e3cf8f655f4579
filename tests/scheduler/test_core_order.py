"""Who is served first and who gives way, in virtual time."""

from __future__ import annotations

from outcomes import judge, prepared, settle

from scheduler.admission import AdmissionMode
from scheduler.events import EndReason
from scheduler.simulator.gateway import Call, VirtualGateway
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.traffic_class import CLASSES


def test_of_one_tenant_and_class_priority_and_arrival_order_the_queue() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=20))
    asked = [submission(key, priority=priority) for key, priority in ((4, 1), (5, 0), (6, -1), (7, 0))]
    calls = {each.request_key: mesh.submit(gateway, each) for each in asked}
    settle(mesh)
    assert sorted(calls, key=lambda key: calls[key].times[0]) == [6, 5, 7, 4]
    for call in calls.values():
        judge(call)


def test_where_places_are_scarce_the_lowest_rank_that_promises_is_first() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)], step_time=0.0001, delay=0.0)
    mesh.submit(gateway, submission(1, max_tokens=20))
    names = ["batch"] * 3 + ["rag"] * 8 + ["interactive"] * 16
    calls = [mesh.submit(gateway, submission(10 + key, traffic_class=name)) for key, name in enumerate(names)]
    settle(mesh)
    assert max(call.times[-1] for call in calls) < 0.5, "a promise is at stake"
    for call in calls:
        judge(call)
    served = [call.submission.traffic_class for call in sorted(calls, key=lambda call: call.times[0])]
    # Who would soon have to make room does not begin.
    assert served == ["interactive"] * 16 + ["rag"] * 8 + ["batch"] * 3


def flooded() -> tuple[VirtualMesh, VirtualGateway, list[Call]]:
    """One place, and for 200 s interactive requests for just as much as it can do, all of which wait for longer than
    they should: a request takes 0.8 s."""
    infos = [worker_info(max_num_seqs=1)]
    mesh, gateway = prepared(infos=infos, step_time=0.1, admission_mode=AdmissionMode.OFF)
    calls = [mesh.submit(gateway, submission(key)) for key in range(1, 6)]
    for key in range(6, 256):
        mesh.at((key - 5) * 0.8, lambda key=key: calls.append(mesh.submit(gateway, submission(key))))
    return mesh, gateway, calls


def test_nothing_starves_where_promises_are_at_stake_all_the_time() -> None:
    mesh, gateway, flood = flooded()
    late: list[Call] = []
    asked = submission(5000, traffic_class="batch", priority=2)
    mesh.at(3.0, lambda: late.append(mesh.submit(gateway, asked)))
    mesh.run(until=100.0)
    # Those who come later are served before it, and no more of them once it has waited for so long.
    waited = late[0].times[0] - 3.0
    assert CLASSES["batch"].patience_s < waited < CLASSES["batch"].patience_s + 2 * 0.8
    settle(mesh)
    for call in (*late, *flood):
        judge(call)


def test_who_has_waited_long_enough_gets_a_share_and_not_all() -> None:
    mesh, gateway, flood = flooded()
    patient: list[Call] = []
    for key in range(5000, 5040):
        asked = submission(key, traffic_class="batch")
        mesh.at(1.0, lambda asked=asked: patient.append(mesh.submit(gateway, asked)))
    mesh.run(until=61.0 + 0.8 * 90)
    begun = [call.times[0] for call in patient if call.times]
    assert min(begun) > 61.0
    # A ninth of what is served from then on.
    assert 9 <= len(begun) <= 11
    settle(mesh)
    for call in (*patient, *flood):
        judge(call)


def test_the_lower_class_gives_way_though_it_came_first() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=14)])
    batch = mesh.submit(gateway, submission(1, (1, 2, 3), 36, traffic_class="batch"))
    mesh.run(until=0.05)
    others = [mesh.submit(gateway, submission(key, (key, 2, 3), 36)) for key in (2, 3)]
    settle(mesh)
    for call in (batch, *others):
        judge(call)
        assert call.ends[0].reason is EndReason.LENGTH
    preempted = [log.fields["request_id"] for log in mesh.logs if log.event == "preempted"]
    assert preempted[0] == "req-1"


def test_of_one_class_the_higher_priority_number_gives_way() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=14)])
    calls = [
        mesh.submit(gateway, submission(key, (key, 2, 3), 36, priority=priority))
        for key, priority in ((1, 0), (2, 3), (3, 0))
    ]
    settle(mesh)
    for call in calls:
        judge(call)
    preempted = [log.fields["request_id"] for log in mesh.logs if log.event == "preempted"]
    assert preempted[0] == "req-2"


def test_nobody_loses_twice_without_a_token_while_another_can_give_way_and_the_most_urgent_never() -> None:
    mesh, gateway = prepared(infos=[worker_info(num_blocks=20, block_size=2)], num_steps=8)
    calls = [
        mesh.submit(gateway, submission(key, (key, key), 30, traffic_class="batch" if key % 3 else ""))
        for key in range(1, 7)
    ]
    lengths: dict[object, list[int]] = {}
    seen = 0

    def watch() -> None:
        nonlocal seen
        for log in mesh.logs[seen:]:
            if log.event == "preempted":
                sequence_id = log.fields["sequence_id"]
                lengths.setdefault(sequence_id, []).append(len(calls[sequence_id - 1].tokens))
        seen = len(mesh.logs)
        if not mesh.core.idle:
            mesh.at(mesh.now + 0.0005, watch)

    watch()
    settle(mesh)
    for call in calls:
        judge(call)
    assert lengths
    # The interactive ones came later than the first batch ones, and are never behind them.
    most_urgent = min((call for call in calls if not call.submission.traffic_class), key=lambda call: call.times[0])
    assert most_urgent.sequence_ids[0] not in lengths
    for counts in lengths.values():
        assert len(set(counts)) == len(counts), "lost twice without a new token"
