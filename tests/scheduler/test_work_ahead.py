"""How much is served before one that comes."""

from __future__ import annotations

import math

from bench_queue import BATCH, INTERACTIVE, RAG, Bench
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fair_order import work_ahead
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import TrafficClass


def ahead_of(bench: Bench, traffic_class: TrafficClass, plan: NamedPlan) -> tuple[float, float]:
    """Tokens and sequences before one that is the last of its line."""
    return work_ahead(bench.queue, traffic_class, plan, (math.inf, 0))[:2]


def test_work_ahead_is_the_own_line_and_of_others_until_they_have_had_as_much() -> None:
    bench = Bench()
    plan = NamedPlan("a")
    assert ahead_of(bench, INTERACTIVE, plan) == (0.0, 0.0)
    for _ in range(4):
        bench.add("a", length=100)
    for _ in range(10):
        bench.add("b", length=100)
    # Four of each.
    assert ahead_of(bench, INTERACTIVE, plan) == (800.0, 8.0)
    # Somebody new waits for nobody, and the last of the longer line for all.
    assert ahead_of(bench, INTERACTIVE, NamedPlan("new")) == (0.0, 0.0)
    assert ahead_of(bench, INTERACTIVE, NamedPlan("b")) == (1400.0, 14.0)
    # Other classes are not counted.
    bench.add("c", BATCH, length=200)
    assert ahead_of(bench, INTERACTIVE, plan) == (800.0, 8.0)
    assert ahead_of(bench, RAG, plan) == (0.0, 0.0)


@given(st.data())
def test_work_ahead_is_near_what_the_order_has_ahead(data: st.DataObject) -> None:
    bench = Bench()
    longest = 0
    for _ in range(data.draw(st.integers(0, 20))):
        length = data.draw(st.integers(1, 64))
        longest = max(longest, length)
        tenant, traffic_class = (
            data.draw(st.sampled_from("abcd")),
            data.draw(st.sampled_from([INTERACTIVE, RAG, BATCH])),
        )
        bench.add(tenant, traffic_class, length, priority=data.draw(st.integers(-1, 1)))
    for _ in range(data.draw(st.integers(0, 6))):
        if len(bench.queue):
            bench.start()
    tenant, traffic_class = data.draw(st.sampled_from("abcde")), data.draw(st.sampled_from([INTERACTIVE, RAG, BATCH]))
    priority = data.draw(st.integers(-2, 2))
    newcomer = bench.add(tenant, traffic_class, 1, priority=priority)
    bench.queue.remove(newcomer)
    ahead = work_ahead(bench.queue, traffic_class, NamedPlan(tenant), newcomer.urgency)
    bench.queue.add(newcomer)
    order = bench.order()
    before = [each for each in order[: order.index(newcomer)] if each.request.traffic_class is traffic_class]
    tokens = sum(len(each.token_ids) for each in before)
    # Each line may be a request before or behind where the flow is.
    assert abs(ahead.tokens - tokens) <= 5 * longest
    assert 0 <= ahead.sequences <= len(order)
