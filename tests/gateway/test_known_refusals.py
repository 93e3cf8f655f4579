"""Refusals that are known: how long each holds, and what makes the gateway ask again."""

from __future__ import annotations

import pytest

from gateway.known_refusals import ASK_AGAIN_S, KnownRefusals
from tercet.errors import PermissionDeniedError, QueueFullError, RequestError, TenantQuotaError
from tercet.tenants.plan import TenantPlan

FREE = TenantPlan()
NOT_OF_THE_PLAN = PermissionDeniedError("not included", metadata={"traffic_class": "batch"})


def quota(name: str, retry_after_s: float | None = 10.0, limit: str = "2") -> TenantQuotaError:
    return TenantQuotaError(
        f"{name} is used up", metadata={"quota": name, "limit": limit, "tenant": "a"}, retry_after_s=retry_after_s
    )


def noted(error: RequestError, asked_at: float = 5.0, now: float = 5.0) -> KnownRefusals:
    known = KnownRefusals()
    known.note("a", "batch", error, asked_at, now)
    return known


def find(known: KnownRefusals, now: float, plan: TenantPlan = FREE) -> RequestError | None:
    return known.find("a", "batch", plan, now)


def test_a_class_that_is_not_included() -> None:
    known = noted(NOT_OF_THE_PLAN)
    found = find(known, 5.9)
    assert isinstance(found, PermissionDeniedError)
    assert (found.message, found.metadata, found.retry_after_s) == ("not included", {"traffic_class": "batch"}, None)
    assert known.find("a", "rag", FREE, 5.9) is None
    assert known.find("b", "batch", FREE, 5.9) is None
    assert find(known, 5.0 + ASK_AGAIN_S) is None
    # For good.
    assert find(known, 5.9) is None


def test_the_time_to_retry_comes_nearer() -> None:
    known = noted(quota("requests_per_minute", 0.5), asked_at=5.0, now=5.1)
    found = find(known, 5.2)
    assert isinstance(found, TenantQuotaError)
    # From when the answer came: by then it is true in any case.
    assert found.retry_after_s == pytest.approx(0.4)
    # Until so long after the question: from then on it may be wrong.
    assert find(known, 5.498) is not None
    assert find(known, 5.4995) is None


def test_who_has_no_request_left_comes_behind_the_one_before() -> None:
    known, plan = noted(quota("requests_per_minute", 2.0)), TenantPlan(requests_per_minute=6)

    def told(now: float) -> float:
        found = find(known, now, plan)
        assert found is not None
        assert found.retry_after_s is not None
        return now + found.retry_after_s

    # The scheduler told the first of them to come at 7, and each minute brings six.
    assert [told(5.5) for _ in range(4)] == pytest.approx([17.0, 27.0, 7.0, 17.0])
    # They are still on their way when the scheduler is asked again.
    assert find(known, 6.0, plan) is None
    known.note("a", "batch", quota("requests_per_minute", 1.0), 6.0, 6.0)
    assert told(6.0) == pytest.approx(27.0)


def test_requests_at_a_time_are_counted_here() -> None:
    known = KnownRefusals()
    known.accepted("a")
    known.accepted("a")
    known.note("a", "batch", quota("max_concurrent", 3.0), 5.0, 5.0)
    found = find(known, 5.5)
    assert found is not None
    assert found.retry_after_s == 3.0
    assert find(known, 5.5, TenantPlan(tokens_per_minute=100)) is None
    known.over("a")
    assert find(known, 5.5) is None


def test_of_requests_at_a_time_nothing_is_known_once_another_was_let_in() -> None:
    known = KnownRefusals()
    known.accepted("a")
    known.note("a", "batch", quota("max_concurrent", 3.0, limit="1"), 5.0, 5.0)
    known.note("a", "rag", NOT_OF_THE_PLAN, 5.0, 5.0)
    known.over("a")
    known.accepted("b")
    known.accepted("a")
    # As many run, but that one may have been the last of the minute.
    assert find(known, 5.5) is None
    assert known.find("a", "rag", FREE, 5.5) is not None
    known.note("a", "batch", quota("max_concurrent", 2.0, limit="1"), 5.5, 5.5)
    assert find(known, 5.6) is not None


@pytest.mark.parametrize(
    "error",
    [
        quota("tokens_per_minute"),
        quota("requests_per_minute", None),
        quota("max_concurrent", 1.0, ""),
        QueueFullError("full", metadata={"quota": "requests_per_minute"}, retry_after_s=1.0),
        PermissionDeniedError("there is no tenant 'a'"),
    ],
)
def test_what_depends_on_more_is_asked_for(error: RequestError) -> None:
    assert find(noted(error), 5.1) is None


def test_other_plans_or_another_scheduler_are_asked() -> None:
    known = noted(NOT_OF_THE_PLAN)
    known.forget(5.2)
    assert find(known, 5.3) is None
    # An answer to what was asked before.
    known.note("a", "batch", NOT_OF_THE_PLAN, 5.1, 5.3)
    assert find(known, 5.3) is None
    known.note("a", "batch", NOT_OF_THE_PLAN, 5.25, 5.3)
    assert find(known, 5.3) is not None
