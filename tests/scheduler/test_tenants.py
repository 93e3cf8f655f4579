"""Which gateway's tenants hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.admission import make_request
from scheduler.events import TenantsChanged
from scheduler.sequence import Request
from scheduler.simulator.mesh import submission
from scheduler.tenant import NamedPlan
from scheduler.tenants import Tenants
from scheduler.traffic_class import DEFAULT_CLASS
from scheduler.usage import Demand

GATEWAYS = st.integers(1, 3)


def told(gateway: int, revision: int, *names: str) -> TenantsChanged:
    return TenantsChanged(gateway, revision, tuple(map(NamedPlan, names)))


def test_a_store_that_was_put_back_holds_when_the_last_gateway_has_seen_it() -> None:
    tenants = Tenants()
    tenants.learn(told(1, 10, "a", "b"), 0.0)
    tenants.learn(told(2, 10, "a", "b"), 0.0)
    tenants.learn(told(1, 4, "a", "c"), 1.0)
    assert tenants.plans.keys() == {"a", "b"}
    tenants.learn(told(2, 4, "a", "c"), 1.2)
    assert tenants.plans.keys() == {"a", "c"}
    # What it was before is as old as any other older state.
    tenants.learn(told(2, 3, "b"), 2.0)
    assert tenants.plans.keys() == {"a", "c"}


def test_a_gateway_that_leaves_takes_its_newer_revision_along() -> None:
    tenants = Tenants()
    tenants.learn(told(1, 10, "a", "b"), 0.0)
    tenants.learn(told(2, 4, "c"), 0.0)
    tenants.gateway_lost(3, 1.0)
    assert tenants.plans.keys() == {"a", "b"}
    tenants.gateway_lost(1, 1.0)
    assert tenants.plans.keys() == {"c"}
    # The last one leaves what it told.
    tenants.gateway_lost(2, 2.0)
    assert tenants.plans.keys() == {"c"}
    tenants.learn(told(4, 1, "d"), 3.0)
    assert tenants.plans.keys() == {"d"}


def let_in(tenants: Tenants, plan: NamedPlan) -> Request:
    request = make_request(1, submission(1, [1]), plan, DEFAULT_CLASS, 1, 0.0)
    tenants.let_in(request, Demand(1, 1, 1), 0.0)
    return request


@pytest.mark.parametrize("seen", [False, True])
def test_who_takes_the_name_of_a_tenant_that_was_removed_inherits_nothing(seen: bool) -> None:
    """Nor while something of the other is under way; whether or not a gateway has `seen` that there was none."""
    tenants = Tenants()
    old, new = (NamedPlan("a", requests_per_minute=2, max_concurrent=1, uid=uid) for uid in ("u1", "u2"))
    tenants.learn(TenantsChanged(1, 1, (old,)), 0.0)
    running = let_in(tenants, old)
    if seen:
        tenants.learn(told(1, 2, "b"), 0.5)
    tenants.learn(TenantsChanged(1, 3, (new,)), 1.0)
    usage = tenants.usage_of(new, 1.0)
    usage.check(Demand(1, 1, 1), "", 1.0)
    assert usage.requests is not None
    assert usage.requests.level_at(1.0) == 2.0
    own = let_in(tenants, new)
    assert not tenants.problems([running, own])
    tenants.request_ended(running, 2.0)
    assert list(tenants.usage) == [new.identity]
    assert tenants.usage[new.identity].running == 1
    assert not tenants.problems([own])


def test_what_a_tenant_that_was_removed_has_under_way_is_settled_with_it() -> None:
    tenants, plan = Tenants(), NamedPlan("a", requests_per_minute=2)
    tenants.learn(TenantsChanged(1, 1, (plan,)), 0.0)
    first, second = let_in(tenants, plan), let_in(tenants, plan)
    tenants.request_ended(first, 1.0)
    tenants.learn(told(1, 2, "b"), 2.0)
    # What is left of it goes on.
    assert tenants.usage[plan.identity].running == 1
    tenants.request_ended(second, 3.0)
    assert not tenants.usage
    tenants.learn(TenantsChanged(1, 3, (plan,)), 4.0)
    bucket = tenants.usage_of(plan, 4.0).requests
    assert bucket is not None
    assert bucket.level_at(4.0) == 2.0


def test_what_a_tenant_used_is_kept_while_there_is_one() -> None:
    for plan, named in ((NamedPlan("a", requests_per_minute=2), True), (NamedPlan(""), False)):
        tenants = Tenants()
        if named:
            tenants.learn(TenantsChanged(1, 1, (plan,)), 0.0)
        tenants.request_ended(let_in(tenants, plan), 1.0)
        assert list(tenants.usage) == [plan.identity]


@settings(max_examples=100)
@given(st.lists(st.tuples(GATEWAYS, st.none() | st.integers(0, 4)), min_size=1, max_size=30))
def test_the_newest_that_a_live_gateway_told_last_holds(steps: list[tuple[int, int | None]]) -> None:
    """A revision of None: the gateway leaves."""
    tenants = Tenants()
    live: dict[int, tuple[int, int]] = {}
    holds: str | None = None
    for number, (gateway, revision) in enumerate(steps):
        if revision is None:
            live.pop(gateway, None)
            tenants.gateway_lost(gateway, float(number))
        else:
            live[gateway] = revision, number
            tenants.learn(told(gateway, revision, f"told in step {number}"), float(number))
        if live:
            holds = f"told in step {max(live.values())[1]}"
        assert list(tenants.plans) == ([] if holds is None else [holds])
        assert tenants.kept is (holds is not None)
