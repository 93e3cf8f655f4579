"""Who is served first and who gives way, in virtual time."""

from __future__ import annotations

from outcomes import judge, prepared, settle

from scheduler.events import EndReason
from scheduler.simulator.gateway import Call
from scheduler.simulator.small import submission, worker_info
from scheduler.traffic_class import PRIORITY_SECONDS


def test_class_and_priority_order_the_queue() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1, max_tokens=20))
    asked = [
        submission(2, traffic_class="batch"),
        submission(3, traffic_class="rag"),
        submission(4, priority=1),
        submission(5),
        submission(6, priority=-1),
        submission(7, traffic_class="interactive"),
    ]
    calls = {each.request_key: mesh.submit(gateway, each) for each in asked}
    settle(mesh)
    assert sorted(calls, key=lambda key: calls[key].times[0]) == [6, 5, 7, 3, 4, 2]
    for call in calls.values():
        judge(call)


def test_nothing_starves() -> None:
    mesh, gateway = prepared(infos=[worker_info(max_num_seqs=1)])
    mesh.submit(gateway, submission(1))
    late = mesh.submit(gateway, submission(1000, traffic_class="batch", priority=2))
    calls: list[Call] = []
    # One after the other keeps the worker busy: 8 tokens, 0.08 s.
    for key in range(1, 1100):
        mesh.at(key * 0.08 - 0.081, lambda key=key: calls.append(mesh.submit(gateway, submission(key + 2000))))
    settle(mesh)
    judge(late)
    claim = 60.0 + 2 * PRIORITY_SECONDS
    # Those that came before that are ahead of it.
    assert claim < late.times[0] < claim + 3


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
