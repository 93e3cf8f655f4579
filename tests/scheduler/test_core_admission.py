"""Who is let in, in the real core: each refusal with its reason and its time to retry, and that it leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from outcomes import judge, prepared, releases, settle

from scheduler.actions import (
    Accepted,
    Action,
    Log,
    NewSequence,
    Refused,
    ReleaseCause,
    ToGateway,
    TokenBatch,
    ToWorker,
)
from scheduler.admission import AdmissionMode, QueueBounds
from scheduler.core import Core
from scheduler.core_settings import CoreSettings
from scheduler.events import (
    CancelReason,
    CancelReceived,
    DrainStarted,
    EndReason,
    GatewayAttached,
    GatewayLost,
    Submitted,
    TenantsChanged,
    TimePassed,
    WorkerAttached,
    WorkerLost,
)
from scheduler.overdue import LOOK_SECONDS
from scheduler.plan_log.checkpoint import Snapshot
from scheduler.policy import Policy
from scheduler.simulator.mesh import VirtualMesh
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, DEFAULT_CLASS, TrafficClass
from tercet import errors

GATEWAY, OTHER = 1, 2
# Sequences that the worker has room for.
SLOTS = 4


class Door:
    """A core with one gateway and one worker that never reports: what comes out is what admission says."""

    def __init__(self, max_requests: int = 1000, max_tokens: int = 10**6, **settings: Any) -> None:
        settings.setdefault("admission_mode", AdmissionMode.OFF)
        self.core = Core(CoreSettings(("host:1",), Policy(4, 0), QueueBounds(max_requests, max_tokens), **settings))
        self.now = 0.0
        self.logs: list[Log] = []
        self._keys: Iterator[int] = iter(range(1000, 10**6))
        self.handle(GatewayAttached(GATEWAY, "one"))
        self.handle(WorkerAttached(1, "host:1", worker_info(max_num_seqs=SLOTS)))

    def handle(self, event: Any) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.logs += [action for action in actions if isinstance(action, Log)]
        assert not self.core.check()
        return actions

    def know(self, *plans: NamedPlan, revision: int = 1, gateway: int = GATEWAY) -> None:
        self.handle(TenantsChanged(gateway, revision, plans))

    def ask(
        self, prompt: int = 3, gateway: int = GATEWAY, key: int | None = None, **changes: Any
    ) -> Accepted | Refused:
        """The answer to a request with a prompt of so many tokens."""
        asked = submission(next(self._keys) if key is None else key, (1,) * prompt, **changes)
        actions = self.handle(Submitted(gateway, asked))
        (answer,) = [
            action.message
            for action in actions
            if isinstance(action, ToGateway) and isinstance(action.message, (Accepted, Refused))
        ]
        return answer

    def refusal(self, prompt: int = 3, **changes: Any) -> errors.RequestError:
        """What refuses it, which leaves the state as it was but for when the next one is told to come."""
        # What comes with the time comes without it, too.
        self.handle(TimePassed())
        before = state_of(self.core)
        expected_at = {key: pace.expected_at for key, pace in self.core._mesh.paces.items()}
        answer = self.ask(prompt, **changes)
        assert isinstance(answer, Refused)
        for key, pace in self.core._mesh.paces.items():
            pace.expected_at = expected_at[key]
        assert state_of(self.core) == before
        assert self.logs[-1].event == "request_refused"
        assert self.logs[-1].fields["reason"] == answer.failure.reason
        return answer.failure

    def accept(self, prompt: int = 3, **changes: Any) -> Accepted:
        answer = self.ask(prompt, **changes)
        assert isinstance(answer, Accepted), answer
        return answer


def state_of(core: Core) -> list[dict[str, Any]]:
    """All that a core knows."""
    return list(Snapshot(core).encoded())


def full(door: Door) -> None:
    """Who comes now waits."""
    for _ in range(SLOTS):
        door.accept()


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
        # 15 are wanted, 10 are left, and a minute brings a hundred.
        assert failure.retry_after_s == pytest.approx(3.0)
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


def test_those_who_waited_for_too_long_are_not_all_told_the_same_moment() -> None:
    door = Door(classes=expiring(5.0))
    full(door)
    for _ in range(4):
        door.accept()
    door.now = 5.0
    told = [each.message for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    ends = [end for each in told if isinstance(each, TokenBatch) for end in each.ends]
    # No later than as if they had waited once more, but for the order.
    assert [end.failure.retry_after_s for end in ends if end.failure] == [5.0, 6.0, 7.0, 8.0]


def expiring(seconds: float, **changes: Any) -> tuple[TrafficClass, ...]:
    return (TrafficClass("interactive", 0, 0.0, max_queue_s=seconds, **changes),)


def test_who_waits_for_too_long_is_told_so() -> None:
    mesh = VirtualMesh(
        [worker_info(max_num_seqs=1)], classes=expiring(0.5), admission_mode=AdmissionMode.OFF, step_time=0.01
    )
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    first = mesh.submit(gateway, submission(1, max_tokens=80))
    waiting = [mesh.submit(gateway, submission(key, max_tokens=4, n=n)) for key, n in ((2, 1), (3, 1))]
    settle(mesh)
    judge(first)
    for call in waiting:
        (end,) = call.ends
        assert end.failure is not None
        assert end.failure.reason == "QUEUE_EXPIRED"
        assert end.failure.retry_after_s
        assert not call.tokens
    started = [each.command.sequence_id for each in mesh.sent if isinstance(each.command, NewSequence)]
    assert started == list(first.sequence_ids)
    assert not releases(mesh, ReleaseCause.CANCEL)


def test_an_hour_in_the_queue_ends_on_time() -> None:
    door = Door(classes=expiring(3600.0))
    full(door)
    door.now = 1.0
    door.accept(n=3)
    # Meanwhile it looks whether the worker moves.
    assert door.core.wake_at() == 1.0 + LOOK_SECONDS
    assert door.core._mesh.next_alarm() == 3601.0
    door.now = 3600.9
    assert not [each for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    door.now = 3601.0
    ends = [each.message for each in door.handle(TimePassed()) if isinstance(each, ToGateway)]
    assert len(ends) == 3
    assert door.core.wake_at() == 3600.9 + LOOK_SECONDS


def test_a_preempted_request_is_never_refused_by_a_bound_nor_too_old() -> None:
    """Short of blocks, some give way again and again, for longer than their class lets anybody wait."""
    mesh = VirtualMesh(
        [worker_info(num_blocks=20)],
        classes=expiring(0.3),
        bounds=QueueBounds(1, 10),
        admission_mode=AdmissionMode.OFF,
        step_time=0.02,
    )
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    calls = []
    for key in range(6):
        mesh.at(0.03 * key, lambda key=key: calls.append(mesh.submit(gateway, submission(key, [key] * 8, 30))))
    settle(mesh)
    preempted = {log.fields["sequence_id"] for log in mesh.logs if log.event == "preempted"}
    assert preempted
    long_ago = 0
    for call in calls:
        if preempted & set(call.sequence_ids):
            judge(call)
            assert call.ends[0].reason is EndReason.LENGTH
            long_ago += call.times[-1] - call.times[0] > 0.5
    assert long_ago
    # The bounds were there all the time.
    assert any(call.refused == "QUEUE_FULL" for call in calls)


@pytest.mark.parametrize("lose", [False, True])
def test_what_lost_its_worker_waits_for_another_however_old_it_is(lose: bool) -> None:
    mesh = VirtualMesh(classes=expiring(0.2), admission_mode=AdmissionMode.OFF)
    gateway = mesh.attach_gateway()
    worker = mesh.attach_worker()
    call = mesh.submit(gateway, submission(1, max_tokens=30))
    if lose:
        mesh.at(0.1, lambda: mesh.lose_worker(worker))
        mesh.at(2.0, mesh.attach_worker)
    settle(mesh)
    judge(call)
    assert len(call.tokens) == 30


def test_an_expired_deadline_is_never_prefilled() -> None:
    mesh = VirtualMesh([worker_info(max_num_seqs=1)], admission_mode=AdmissionMode.OFF, step_time=0.01)
    gateway = mesh.attach_gateway()
    mesh.attach_worker()
    first = mesh.submit(gateway, submission(1, max_tokens=60))
    late = [mesh.submit(gateway, submission(key, max_tokens=4, deadline_s=0.05 * key)) for key in range(2, 9)]
    settle(mesh)
    judge(first)
    for call in late:
        judge(call)
        assert call.ends[0].failure is not None
    started = [each.command.sequence_id for each in mesh.sent if isinstance(each.command, NewSequence)]
    assert started == list(first.sequence_ids)


@pytest.mark.parametrize("deadline_s", [1.0, None])
def test_who_is_overdue_neither_starts_nor_fills_the_queue_when_a_full_one_is_planned_between_two_events(
    deadline_s: float | None,
) -> None:
    """Two events come at once: a worker with room, and one more than the queue has room for."""
    door = Door(max_requests=1, classes=expiring(1.0 if deadline_s is None else 0.0))
    full(door)
    late = door.accept(deadline_s=deadline_s)
    door.now = 1.0
    newcomer = submission(5000)
    events = (
        WorkerLost(1),
        WorkerAttached(2, "host:1", worker_info(max_num_seqs=SLOTS + 2, epoch=2)),
        Submitted(GATEWAY, newcomer),
    )
    actions = [action for event in events for action in door.core.apply(event, door.now)]
    started = {
        each.command.sequence_id
        for each in actions
        if isinstance(each, ToWorker) and isinstance(each.command, NewSequence)
    }
    assert len(started) == SLOTS
    assert started.isdisjoint(late.sequence_ids)
    told = {
        each.message.request_key
        for each in actions
        if isinstance(each, ToGateway) and isinstance(each.message, Accepted)
    }
    assert told == {newcomer.request_key}


def test_a_deadline_ends_prefill_and_decode() -> None:
    mesh, gateway = prepared(step_time=0.01)
    prefill = mesh.submit(gateway, submission(1, [3] * 100, 8, deadline_s=0.035))
    decode = mesh.submit(gateway, submission(2, [4] * 3, 100, deadline_s=0.3))
    settle(mesh)
    for call in (prefill, decode):
        judge(call)
        assert call.ends[0].failure is not None
        assert call.ends[0].failure.reason == "DEADLINE_PASSED"
    assert not prefill.tokens
    assert 0 < len(decode.tokens) < 100
    assert all(log.fields["total_ms"] < 400 for log in mesh.logs if log.event == "request_finished")


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
