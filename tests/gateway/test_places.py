"""The gateway's places: no tenant locks another one out, and where there are no tenants nothing is kept free."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.caller import ANYONE, Caller
from gateway.places import Places
from tercet.errors import QueueFullError, RequestError, TenantQuotaError
from tercet.tenants.plan import TenantPlan


def tenant(name: str, max_concurrent: int = 0) -> Caller:
    return Caller(name, "key", operator=False, salt_key=bytes(32), plan=TenantPlan(max_concurrent=max_concurrent))


def take(places: Places, caller: Caller, most: int) -> int:
    """How many of `most` the caller gets before it is refused."""
    for count in range(most):
        try:
            places.check(caller)
        except RequestError:
            return count
        places.take(caller.tenant)
    return most


def fill(places: Places, caller: Caller) -> int:
    """How many the caller gets until it is refused."""
    return take(places, caller, 10_000)


def test_a_flood_leaves_room_for_others() -> None:
    places = Places(4096)
    assert fill(places, tenant("flood")) == 3072
    # As many as it likes of those, and a third one after it.
    assert fill(places, tenant("second")) == 768
    assert fill(places, tenant("third")) == 192
    with pytest.raises(QueueFullError, match="max_concurrent_requests") as full:
        places.check(tenant("flood"))
    assert full.value.retry_after_s
    # What the flood gives back goes to those that have less.
    for _ in range(500):
        places.leave("flood")
    assert fill(places, tenant("flood")) == 0
    assert fill(places, tenant("third")) > 300


def test_a_tenant_that_has_its_share_says_nothing_about_room() -> None:
    places = Places(64)
    assert fill(places, tenant("flood")) == 48
    assert fill(places, tenant("flood")) == 0
    assert places.num_turned_away == 0
    # The last places of all.
    for name in ("second", "third", "fourth"):
        fill(places, tenant(name))
    with pytest.raises(QueueFullError):
        places.check(tenant("fifth"))
    assert places.num_turned_away > 0


def test_without_tenants_whoever_comes_takes_any() -> None:
    assert [fill(Places(limit), ANYONE) for limit in (1, 2, 4096)] == [1, 2, 4096]


def test_few_places_are_of_use_to_one_tenant() -> None:
    assert [fill(Places(limit), tenant("a")) for limit in (1, 2, 3, 4, 8)] == [1, 2, 3, 3, 6]


def test_a_plan_bounds_what_waits_for_the_scheduler() -> None:
    places = Places(4096)
    assert fill(places, tenant("a", max_concurrent=5)) == 10
    with pytest.raises(TenantQuotaError) as refused:
        places.check(tenant("a", max_concurrent=5))
    assert refused.value.metadata == {"quota": "max_concurrent", "limit": "5", "tenant": "a"}
    assert refused.value.retry_after_s
    places.check(tenant("b", max_concurrent=5))
    # A plan that changed holds for the next one.
    places.check(tenant("a", max_concurrent=6))


@settings(max_examples=100)
@given(st.sampled_from([("a", 4), ("ab", 16), ("abc", 64)]), st.data())
def test_someone_new_is_always_let_in(tenants_and_limit: tuple[str, int], data: st.DataObject) -> None:
    """However the others come and go. The last to come has at most 3 of the places, the one before it 3 x (1 + 3), and
    so on: n tenants take 4^n - 1."""
    names, limit = tenants_and_limit
    places, held = Places(limit), Counter[str]()
    for name, moves in data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(-limit, limit)), max_size=40)):
        if moves > 0:
            held[name] += take(places, tenant(name), moves)
        for _ in range(min(held[name], -moves)):
            places.leave(name)
            held[name] -= 1
        assert held.total() < limit
        places.check(tenant("new"))


class Clock:
    """Seconds, as a test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def retry_after(places: Places, caller: Caller) -> float:
    with pytest.raises((QueueFullError, TenantQuotaError)) as caught:
        places.check(caller)
    assert caught.value.retry_after_s is not None
    return caught.value.retry_after_s


def test_the_time_to_retry_is_when_places_will_be_left() -> None:
    clock = Clock()
    places = Places(8, clock)
    few, flood = tenant("few", max_concurrent=1), tenant("flood")
    assert take(places, few, 3) == 2
    assert take(places, flood, 9) == 5
    # Nobody has left yet.
    assert retry_after(places, few) == retry_after(places, flood) == 1.0
    # Each place is held for seven seconds: of seven that are held one is left in each.
    for second in range(700):
        clock.now += 1.0
        name = "few" if second % 7 < 2 else "flood"
        places.leave(name)
        places.take(name)
    assert retry_after(places, few) == pytest.approx(7.0 / 2)
    assert retry_after(places, flood) == pytest.approx(7.0 / 7)
    # With less left free by others the same tenant waits for more to leave.
    places.take("third")
    assert retry_after(places, flood) == pytest.approx(2 * 7.0 / 8)
    # Nobody leaves any more.
    clock.now += 5.0
    assert retry_after(places, flood) == pytest.approx(2 * 40.0 / 8)
    clock.now += 1e6
    assert retry_after(places, flood) == 60.0
