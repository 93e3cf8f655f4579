"""Who is let in, in the real core: each refusal with its reason and its time to retry, and that it leaves no trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from core_door import GATEWAY, OTHER, SLOTS, Door, full
from outcomes import judge, prepared, settle

from scheduler.actions import Refused
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.events import CancelReason, CancelReceived, DrainStarted, GatewayAttached, GatewayLost, TenantsChanged
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass
from tercet import errors


def test_each_reason_in_the_order_of_the_checks() -> None:
    """Each of these requests is wrong in all that comes after, too."""
    classes = (CLASSES["interactive"], TrafficClass("batch", 2, 0.0, max_queued_requests=1))
    door = Door(2, classes=classes)
    plan = NamedPlan("a", classes=("interactive", "batch"), max_context=100, requests_per_minute=1, kv_share=0.5)
    door.know(plan, NamedPlan("b"), NamedPlan("c", tokens_per_minute=20), NamedPlan("d", classes=("batch",)))
    first = door.accept(tenant="a", key=0)
    wrong: dict[str, Any] = {"prompt": 200, "deadline_s": -1.0, "priority": 300, "traffic_class": "none"}
    steps: list[tuple[dict[str, Any], type[errors.RequestError]]] = [
        ({"key": 0, "tenant": "nobody", **wrong}, errors.DuplicateRequestError),
        ({"tenant": "nobody", **wrong}, errors.PermissionDeniedError),
        ({"tenant": "a", **wrong}, errors.InvalidFieldError),
        ({"tenant": "d", **wrong, "traffic_class": "interactive"}, errors.PermissionDeniedError),
        ({"tenant": "a", **wrong, "traffic_class": "batch"}, errors.InvalidFieldError),
        ({"tenant": "a", "prompt": 200, "deadline_s": -1.0, "model": "other"}, errors.ModelNotFoundError),
        ({"tenant": "a", "prompt": 95, "deadline_s": -1.0}, errors.PromptTooLongError),
        ({"tenant": "a", "prompt": 60, "deadline_s": -1.0}, errors.KvNeverFitsError),
        ({"tenant": "c", "prompt": 30, "deadline_s": -1.0}, errors.DeadlineError),
    ]
    for asked, error in steps:
        assert type(door.refusal(**asked)) is error
    for _ in range(SLOTS - 1):
        door.accept(tenant="b")
    assert first.queue_position == 0
    door.accept(tenant="b", traffic_class="batch")
    # What waits of a higher rank does not keep it out.
    for _ in range(2):
        door.accept(tenant="b", traffic_class="interactive")
    # All slots are taken, both queues are full.
    quota = door.refusal(30, tenant="c", traffic_class="batch")
    assert (type(quota), quota.retry_after_s) == (errors.TenantQuotaError, None)
    of_class = door.refusal(tenant="b", traffic_class="batch")
    assert of_class.metadata["setting"] == "classes.batch.max_queued_requests"
    of_pool = door.refusal(tenant="b", traffic_class="interactive")
    assert of_pool.metadata["setting"] == "scheduler.max_queued_requests"
    assert of_pool.retry_after_s
    door.handle(DrainStarted())
    assert type(door.refusal(tenant="nobody", **wrong)) is errors.DrainingError


def test_fifty_at_once_against_a_limit_of_a_hundred_tokens() -> None:
    door = Door()
    door.know(NamedPlan("a", tokens_per_minute=100))
    answers = [door.ask(5, tenant="a", max_tokens=10) for _ in range(50)]
    refused = [answer.failure for answer in answers if isinstance(answer, Refused)]
    assert len(answers) - len(refused) == 6
    for failure in refused:
        assert failure.reason == "TENANT_QUOTA"
        assert failure.metadata == {"quota": "tokens_per_minute", "limit": "100", "tenant": "a"}
    # 15 are wanted, 10 are left, and a minute brings a hundred; and 15 more for each of the others.
    assert [failure.retry_after_s for failure in refused[:5]] == pytest.approx([3.0, 12.0, 21.0, 30.0, 3.0])
    door.now = 2.9
    door.refusal(5, tenant="a", max_tokens=10)
    door.now = 3.0 + 1e-6
    door.accept(5, tenant="a", max_tokens=10)


def test_quotas_are_settled_by_what_was_used() -> None:
    mesh, gateway = prepared(admission_mode=AdmissionMode.OFF)
    mesh.post(TenantsChanged(1, 1, (NamedPlan("a", tokens_per_minute=600),)))
    calls = [
        mesh.submit(gateway, submission(1, (9, 9, 9), 50, tenant="a")),
        mesh.submit(gateway, submission(2, (7, 7), 10, tenant="a", n=3)),
        mesh.submit(gateway, submission(3, (8,) * 20, 40, tenant="a")),
    ]
    mesh.at(0.05, lambda: mesh.cancel(gateway, calls[2]))
    levels: list[float] = []
    usage = mesh.core._mesh.tenants.usage
    mesh.at(2.0, lambda: levels.append(usage["a", ""].tokens.level_at(2.0)))
    settle(mesh)
    for call in calls:
        judge(call)
    used = 3 + 2 + 20 + sum(log.fields["tokens"] for log in mesh.logs if log.event == "request_finished")
    # Two seconds bring back 20; the first milliseconds found it full.
    assert levels == [pytest.approx(600 - used + 20, abs=0.1)]
    assert (usage["a", ""].running, usage["a", ""].tokens.at_risk) == (0, 0)


def test_a_request_that_never_started_costs_nothing() -> None:
    door = Door()
    door.know(NamedPlan("a", tokens_per_minute=600, max_concurrent=SLOTS + 1))
    for key in range(SLOTS):
        door.accept(3, tenant="a", max_tokens=1, key=key)
    door.accept(100, tenant="a", max_tokens=20, key=SLOTS)
    usage = door.core._mesh.tenants.usage["a", ""]
    assert usage.tokens is not None
    assert (usage.tokens.level, usage.running) == (600 - SLOTS * 4 - 120, SLOTS + 1)
    assert door.refusal(tenant="a").metadata["quota"] == "max_concurrent"
    door.handle(CancelReceived(GATEWAY, SLOTS, CancelReason.CLIENT))
    assert (usage.tokens.level, usage.running) == (600 - SLOTS * 4, SLOTS)


def test_a_tenants_flood_is_nobody_elses_quota() -> None:
    door = Door()
    door.know(NamedPlan("a", requests_per_minute=1), NamedPlan("b", requests_per_minute=1))
    door.accept(tenant="a")
    error = door.refusal(tenant="a")
    assert error.metadata == {"quota": "requests_per_minute", "limit": "1", "tenant": "a"}
    door.accept(tenant="b")


def test_without_tenants_anybody_asks_and_nobody_else() -> None:
    door = Door()
    door.accept()
    assert isinstance(door.refusal(tenant="a"), errors.PermissionDeniedError)


def test_once_tenants_are_named_nobody_is_served_without_being_one() -> None:
    door = Door()
    door.handle(GatewayAttached(OTHER, "two"))
    door.accept(gateway=OTHER)
    door.know(NamedPlan("a"))
    door.accept(tenant="a", gateway=OTHER)
    for gateway in (GATEWAY, OTHER):
        assert isinstance(door.refusal(gateway=gateway), errors.PermissionDeniedError)
    # Nor when who named them has gone.
    door.handle(GatewayLost(GATEWAY))
    assert isinstance(door.refusal(gateway=OTHER), errors.PermissionDeniedError)
    door.accept(tenant="a", gateway=OTHER)


def test_the_newest_revision_counts_whoever_tells_it() -> None:
    door = Door()
    door.handle(GatewayAttached(OTHER, "two"))
    door.know(NamedPlan("a"), NamedPlan("b"), revision=5)
    door.know(NamedPlan("a"), revision=6, gateway=OTHER)
    door.know(NamedPlan("a"), NamedPlan("b"), revision=5)
    assert isinstance(door.refusal(tenant="b"), errors.PermissionDeniedError)
    # Of a gateway that is not there nothing is heard.
    door.know(NamedPlan("b"), revision=9, gateway=3)
    assert isinstance(door.refusal(tenant="b"), errors.PermissionDeniedError)
    # The store was put back to what it was before, and one gateway after the other was started anew.
    door.handle(GatewayLost(OTHER))
    door.know(NamedPlan("b"), revision=2)
    door.accept(tenant="b")
    assert isinstance(door.refusal(tenant="a"), errors.PermissionDeniedError)


def test_a_store_that_was_put_back_is_adopted_beside_a_gateway_that_told_the_same() -> None:
    door = Door()
    door.handle(GatewayAttached(OTHER, "two"))
    for gateway in (GATEWAY, OTHER):
        door.know(NamedPlan("a"), NamedPlan("b"), revision=9, gateway=gateway)
    door.accept(tenant="b")
    door.know(NamedPlan("a"), revision=3)
    door.accept(tenant="b")
    door.know(NamedPlan("a"), revision=3, gateway=OTHER)
    assert isinstance(door.refusal(tenant="b"), errors.PermissionDeniedError)
    # One that has not seen it is gone: nobody tells again, and its word goes with it.
    door.know(NamedPlan("a"), NamedPlan("b"), revision=9, gateway=OTHER)
    door.accept(tenant="b")
    door.handle(GatewayLost(OTHER))
    assert isinstance(door.refusal(tenant="b"), errors.PermissionDeniedError)
    assert door.core.traffic(door.now, 10).tenants[-1].tenant is None, "the counts of b go on as those of who is gone"


def test_a_gateway_that_leaves_where_nobody_keeps_tenants_takes_no_counts_along() -> None:
    door = Door()
    door.accept()
    door.handle(GatewayAttached(OTHER, "two"))
    door.handle(GatewayLost(OTHER))
    assert [each.tenant for each in door.core.traffic(door.now, 10).tenants] == [""]


def test_the_log_says_whose_a_request_was() -> None:
    mesh, gateway = prepared()
    mesh.post(TenantsChanged(1, 1, (NamedPlan("a"),)))
    mesh.submit(gateway, submission(1, tenant="a"))
    settle(mesh)
    (finished,) = (log.fields for log in mesh.logs if log.event == "request_finished")
    assert finished["tenant"] == "a"


def test_a_tenant_that_is_gone_ends_what_it_has() -> None:
    mesh, gateway = prepared()
    mesh.post(TenantsChanged(1, 1, (NamedPlan("a", tokens_per_minute=600),)))
    call = mesh.submit(gateway, submission(1, max_tokens=20, tenant="a"))
    late = []
    mesh.at(0.05, lambda: mesh.post(TenantsChanged(1, 2, ())))
    mesh.at(0.06, lambda: late.append(mesh.submit(gateway, submission(2, tenant="a"))))
    mesh.at(9.0, lambda: mesh.post(TenantsChanged(1, 3, ())))
    settle(mesh)
    judge(call)
    assert len(call.tokens) == 20
    judge(late[0], refusals={"PERMISSION_DENIED"})
    assert late[0].refused
    assert not mesh.core._mesh.tenants.usage


def test_a_plan_clamps_priorities() -> None:
    door = Door()
    door.know(NamedPlan("a", min_priority=10))
    full_of = [door.accept(tenant="a", priority=priority) for priority in (-50, 20)]
    sequences = [door.core._mesh.sequences[each.sequence_ids[0]] for each in full_of]
    assert [each.request.submission.priority for each in sequences] == [10, 20]


def test_the_time_to_retry_comes_from_how_fast_the_queue_moves() -> None:
    """A worker that serves one after the other, and a queue of four."""
    mesh = VirtualMesh(
        [worker_info(max_num_seqs=1)],
        bounds=QueueBounds(4, 10**6),
        admission_mode=AdmissionMode.OFF,
        step_time=0.05,
    )
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    calls = []
    for key in range(200):
        mesh.at(0.03 * key, lambda key=key: calls.append(mesh.submit(gateway, submission(key, (5, key % 50), 2))))
    settle(mesh)
    refused = [log.fields for log in mesh.logs if log.event == "request_refused"]
    assert len(refused) > 50
    assert all(call.refused in (None, "QUEUE_FULL") for call in calls)
    between = 6.0 / sum(not call.refused for call in calls)
    # As soon as one has started, and one behind the other.
    assert min(each["retry_after_s"] for each in refused[-50:]) >= 0.8 * between
    told = sorted(0.03 * int(each["request_id"].split("-")[1]) + each["retry_after_s"] for each in refused[-50:])
    assert median(later - one for one, later in pairwise(told)) == pytest.approx(between, rel=0.2)


def test_those_for_whom_a_queue_is_too_full_are_not_all_told_the_same_moment() -> None:
    door = Door(max_requests=4)
    full(door)
    for _ in range(4):
        door.accept()
    # Before anything is known of how fast it moves.
    answers = [door.ask() for _ in range(4)]
    assert [each.failure.retry_after_s for each in answers if isinstance(each, Refused)] == [1.0, 2.0, 3.0, 4.0]


def test_a_class_says_how_much_of_it_may_wait() -> None:
    classes = (DEFAULT_CLASS, TrafficClass("batch", 2, 0.0, max_queued_tokens=10))
    door = Door(classes=classes)
    full(door)
    door.accept(50, traffic_class="batch")
    assert isinstance(door.refusal(1, traffic_class="batch"), errors.QueueFullError)
    door.accept(50)
    door.accept(50)


def test_what_is_refused_names_tenant_and_class_in_the_log() -> None:
    door = Door()
    door.know(NamedPlan("a", tokens_per_minute=5))
    door.refusal(tenant="a", traffic_class="batch")
    fields = door.logs[-1].fields
    assert (fields["tenant"], fields["traffic_class"], fields["reason"]) == ("a", "batch", "TENANT_QUOTA")
    door.refusal(99, tenant="a", max_tokens=99)
    assert door.logs[-1].fields["field"] == "stop.max_tokens"
    # Names that anybody can make up are not repeated.
    door.refusal(tenant="made up", traffic_class="that, too")
    assert (door.logs[-1].fields["tenant"], door.logs[-1].fields["traffic_class"]) == (None, "")
