"""Every refusal by itself, with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import fleet_of
from sequences import sequence_of

from scheduler.admission import (
    MAX_SEQUENCES_PER_REQUEST,
    Overflow,
    QueueBounds,
    clamp_priority,
    find_class,
    find_overflow,
    find_pool,
)
from scheduler.sequence import Request
from scheduler.simulator.small import submission, worker_info
from scheduler.tenant import ANYONE, NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass
from scheduler.waiting import WaitingQueue
from tercet import errors


def wait(
    waiting: WaitingQueue,
    key: int,
    length: int,
    traffic_class: TrafficClass = CLASSES["interactive"],
    plan: NamedPlan = ANYONE,
) -> None:
    request = Request(1, submission(key, [1] * length), 0.0, None, plan, traffic_class)
    waiting.add(sequence_of(request, key, [1] * length, length + 8))


def test_the_pool_of_model_and_revision() -> None:
    fleet = fleet_of(worker_info(), worker_info(model_revision="r2"))
    assert find_pool(submission(1, model_revision="r2"), fleet).model_revision == "r2"


def test_an_unknown_model_lists_what_is_served() -> None:
    with pytest.raises(errors.ModelNotFoundError) as caught:
        find_pool(submission(1, model="other"), fleet_of(worker_info()))
    assert caught.value.metadata == {"model": "other", "served": "tiny"}


def test_a_model_that_an_absent_worker_may_serve_is_no_worker() -> None:
    with pytest.raises(errors.NoWorkerError) as caught:
        find_pool(submission(1, model="other"), fleet_of(worker_info(), addresses=2))
    assert caught.value.retry_after_s


def test_a_model_whose_workers_are_gone_is_no_worker() -> None:
    fleet = fleet_of(worker_info())
    fleet.remove(fleet.workers[0])
    with pytest.raises(errors.NoWorkerError) as caught:
        find_pool(submission(1), fleet)
    assert caught.value.retry_after_s


def test_another_revision() -> None:
    with pytest.raises(errors.RevisionMismatchError) as caught:
        find_pool(submission(1, model_revision="r0"), fleet_of(worker_info()))
    assert caught.value.metadata["worker_revision"] == "r1"


def class_of(name: str, plan: NamedPlan = ANYONE) -> str:
    return find_class(name, plan, tuple(CLASSES.values()), "rag").name


def test_a_request_is_of_the_class_that_it_names_or_of_the_default_one() -> None:
    assert (class_of("batch"), class_of("")) == ("batch", "rag")
    with pytest.raises(errors.InvalidFieldError, match=r"'bulk'.*interactive, rag, batch") as caught:
        class_of("bulk")
    assert caught.value.metadata["field"] == "traffic_class"


def test_a_plan_says_which_classes_there_are() -> None:
    plan = NamedPlan("a", classes=("batch", "interactive"))
    assert class_of("interactive", plan) == "interactive"
    # The default one is not among them.
    assert class_of("", plan) == "batch"
    assert class_of("", NamedPlan("a", classes=("batch", "rag"))) == "rag"
    assert class_of("", NamedPlan("a", default_class="interactive")) == "interactive"
    with pytest.raises(errors.PermissionDeniedError, match="batch, interactive"):
        class_of("rag", plan)
    # What others may use is not told.
    with pytest.raises(errors.InvalidFieldError, match=r"classes are batch, interactive$"):
        class_of("bulk", plan)


def test_a_plan_that_names_a_class_that_there_is_not_is_said_to() -> None:
    said = r"'bulk', which the tenant's plan names; the"
    with pytest.raises(errors.InvalidFieldError, match=rf"{said} classes are interactive, rag, batch$"):
        class_of("", NamedPlan("a", default_class="bulk"))
    for asked in ("", "bulk"):
        with pytest.raises(errors.InvalidFieldError, match=rf"{said} classes are batch$"):
            class_of(asked, NamedPlan("a", classes=("bulk", "batch")))
        with pytest.raises(errors.InvalidFieldError, match=rf"{said} plan includes none that there is$"):
            class_of(asked, NamedPlan("a", classes=("bulk",)))
    with pytest.raises(errors.PermissionDeniedError, match=r"'rag'; the plan includes none that there is$"):
        class_of("rag", NamedPlan("a", classes=("bulk",)))
    with pytest.raises(errors.PermissionDeniedError, match=r"'rag'; it includes batch$"):
        class_of("rag", NamedPlan("a", classes=("bulk", "batch")))
    with pytest.raises(errors.InvalidFieldError, match=r"'none'; the classes are batch$"):
        class_of("none", NamedPlan("a", classes=("bulk", "batch")))


@pytest.mark.parametrize("priority", [-101, 101, 2**31 - 1])
def test_priority_is_bounded(priority: int) -> None:
    with pytest.raises(errors.InvalidFieldError) as caught:
        clamp_priority(submission(1, priority=priority), ANYONE)
    assert caught.value.metadata["field"] == "priority"


def test_a_plan_bounds_how_urgent_a_request_may_be() -> None:
    plan = NamedPlan("a", min_priority=5)
    priorities = [clamp_priority(submission(1, priority=each), plan).priority for each in (-100, 4, 5, 6)]
    assert priorities == [5, 5, 5, 6]
    assert clamp_priority(submission(1, priority=-100), ANYONE).priority == -100


def overflow_of(waiting: WaitingQueue, bounds: QueueBounds, length: int = 1, n: int = 1) -> Overflow | None:
    return find_overflow(submission(9, (1,) * length, n=n), waiting, bounds, CLASSES["interactive"], ANYONE)


def test_the_bounds_of_a_pool() -> None:
    waiting = WaitingQueue()
    # However much it is.
    assert overflow_of(waiting, QueueBounds(1, 10), length=50, n=MAX_SEQUENCES_PER_REQUEST + 1) is None
    wait(waiting, 1, 6)
    most = 2 * MAX_SEQUENCES_PER_REQUEST
    assert overflow_of(waiting, QueueBounds(2, 10), length=4, n=most - 1) is None
    assert overflow_of(waiting, QueueBounds(2, 10), length=5) == Overflow("", "max_queued_tokens", 1)
    assert overflow_of(waiting, QueueBounds(1, 1000)) == Overflow("", "max_queued_requests", 1)
    assert overflow_of(waiting, QueueBounds(2, 10), length=4, n=most) == Overflow("", "max_queued_requests", 1)


def test_the_bounds_of_a_class_are_its_own() -> None:
    waiting, bounds = WaitingQueue(), QueueBounds(100, 1000)
    one = TrafficClass("one", 0, 0.0, max_queued_requests=3, max_queued_tokens=20)
    other = TrafficClass("other", 1, 0.0)
    for key in range(5):
        wait(waiting, key, 10, other)
    asked = submission(9, (1,) * 8)
    assert find_overflow(asked, waiting, bounds, one, ANYONE) is None
    wait(waiting, 5, 9, one)
    assert find_overflow(asked, waiting, bounds, one, ANYONE) is None
    wait(waiting, 6, 9, one)
    assert find_overflow(asked, waiting, bounds, one, ANYONE) == Overflow("one", "max_queued_tokens", 1)
    wait(waiting, 7, 1, one)
    assert find_overflow(asked, waiting, bounds, one, ANYONE) == Overflow("one", "max_queued_requests", 1)
    assert find_overflow(submission(9, (1,) * 50), waiting, bounds, other, ANYONE) is None
    # 17 tokens too many, where eight requests have 69.
    assert find_overflow(asked, waiting, QueueBounds(100, 60), other, ANYONE) == Overflow("", "max_queued_tokens", 2)


def test_what_waits_of_higher_ranks_keeps_nobody_out() -> None:
    waiting, bounds = WaitingQueue(), QueueBounds(4, 1000)
    chat, batch = TrafficClass("chat", 0, 0.0), TrafficClass("batch", 1, 0.0)
    asked = submission(9, (1,))
    for key in range(4):
        wait(waiting, key, 10, batch)
    assert find_overflow(asked, waiting, bounds, batch, ANYONE) == Overflow("", "max_queued_requests", 1)
    for key in range(4, 8):
        assert find_overflow(asked, waiting, bounds, chat, ANYONE) is None
        wait(waiting, key, 10, chat)
    assert find_overflow(asked, waiting, bounds, chat, ANYONE) == Overflow("", "max_queued_requests", 1)
    assert find_overflow(asked, waiting, bounds, batch, ANYONE) == Overflow("", "max_queued_requests", 5)


@pytest.mark.parametrize("own_bound", [True, False])
def test_a_flood_of_one_tenant_keeps_nobody_else_out_until_there_is_twice_as_much(own_bound: bool) -> None:
    kind = TrafficClass("kind", 0, 0.0, max_queued_requests=12 * own_bound)
    waiting, bounds = WaitingQueue(), QueueBounds(0 if own_bound else 12, 0)
    full = Overflow("kind" if own_bound else "", "max_queued_requests", 1)
    flood, small, large = NamedPlan("flood"), NamedPlan("small"), NamedPlan("large", weight=2.0)
    asked = submission(9, (1,))

    def overflow(plan: NamedPlan) -> Overflow | None:
        return find_overflow(asked, waiting, bounds, kind, plan)

    for key in range(12):
        assert overflow(flood) is None
        wait(waiting, key, 10, kind, flood)
    assert overflow(flood) == full
    # A half, as long as there are two.
    for key in range(6):
        assert overflow(small) is None
        wait(waiting, 20 + key, 10, kind, small)
    assert overflow(small) == replace(full, starts=7)
    # A half of the whole, of which it has twice the weight of each.
    for key in range(6):
        assert overflow(large) is None
        wait(waiting, 30 + key, 10, kind, large)
    # A fourth would have room, but for the end of all room.
    assert overflow(NamedPlan("late")) == replace(full, starts=13)


def test_a_full_queue_tells_its_bound_and_not_who_waits() -> None:
    error = Overflow("batch", "max_queued_tokens", 3).error(2.5)
    assert error.metadata == {"setting": "classes.batch.max_queued_tokens", "traffic_class": "batch"}
    assert error.retry_after_s == 2.5
    assert Overflow("", "max_queued_requests", 3).error(2.5).metadata["setting"] == "scheduler.max_queued_requests"
