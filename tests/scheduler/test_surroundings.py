"""Who is ahead of a newcomer, and who will pass it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from sequences import sequence_of

from scheduler.sequence import Request
from scheduler.simulator.small import submission
from scheduler.surroundings import Surroundings, surroundings
from scheduler.tenant import ANYONE, NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass
from scheduler.waiting import WaitingQueue

CHAT, RAG, BATCH = (CLASSES[name] for name in ("interactive", "rag", "batch"))


class Bench:
    """A queue that requests are put into."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self._last = 0

    def add(self, traffic_class: TrafficClass, length: int, at: float, tenant: NamedPlan = ANYONE) -> None:
        self._last += 1
        request = Request(1, submission(self._last, [1] * length), at, None, tenant, traffic_class)
        claim = traffic_class.claim(at, self._last)
        self.queue.add(sequence_of(request, self._last, [1] * length, length + 100, claim=claim))

    def around(
        self, traffic_class: TrafficClass, now: float, tenant: NamedPlan = ANYONE, own_inflow: float = 0.0,
        seats: Mapping[str, int] | None = None, priority: int = 0, **inflows: float,
    ) -> Surroundings:  # fmt: skip
        urgency = now + traffic_class.claim_s + 10.0 * priority, self._last + 1
        return surroundings(self.queue, traffic_class, tenant, urgency, inflows, own_inflow, seats or {}, now)


def test_nobody_is_there() -> None:
    assert Bench().around(CHAT, 10.0) == Surroundings()


def test_its_own_class_is_ahead() -> None:
    bench = Bench()
    for at in (0.0, 0.1, 0.2):
        bench.add(CHAT, 100, at)
    around = bench.around(CHAT, 0.3, own_inflow=50.0, interactive=50.0)
    assert (around.sequences, around.tokens, around.inflow) == (3, 300, 50.0)
    assert around.overtaking == around.overtaking_most == 0.0


def test_who_is_more_urgent_passes_its_own_line() -> None:
    bench = Bench()
    for at in (0.0, 20.0, 24.9):
        bench.add(CHAT, 100, at, NamedPlan("a"))
    bench.add(CHAT, 500, 0.0, NamedPlan("b"))
    asked = [bench.around(CHAT, 25.0, NamedPlan("a"), priority=priority) for priority in (1, 0, -1, -3)]
    assert [each.own_tokens for each in asked] == [300, 300, 100, 0]
    assert [each.own_sequences for each in asked] == [3, 3, 1, 0]
    # And with it what others are served until its turn.
    assert [each.tokens for each in asked] == [600, 600, 200, 0]


def test_of_other_classes_what_is_due_sooner_is_ahead() -> None:
    bench = Bench()
    for at in (0.0, 2.0, 4.0):
        bench.add(RAG, 1000, at)
    # Its first token is due in a second, that of the first two sooner.
    assert bench.around(CHAT, 6.5).tokens == pytest.approx(3000 * 2.5 / 6.5)
    assert bench.around(CHAT, 2.0).tokens == 0.0
    # One that may wait for a minute lets all pass.
    around = bench.around(BATCH, 6.5)
    assert (around.sequences, around.tokens) == (3, 3000)


def test_of_a_class_that_is_full_only_what_has_a_seat_is_ahead() -> None:
    bench = Bench()
    for _ in range(4):
        bench.add(RAG, 1000, 0.0)
    assert bench.around(CHAT, 200.0).tokens == pytest.approx(4000, rel=0.05)
    some, none = (bench.around(CHAT, 200.0, seats={"rag": seats}) for seats in (1, 0))
    assert (some.sequences, some.tokens) == (1, 1000)
    assert (none.sequences, none.tokens) == (0, 0)
    # Seats that nobody waits for are no work.
    assert bench.around(CHAT, 200.0, seats={"rag": 9}).tokens == pytest.approx(4000, rel=0.05)


def test_what_waits_of_its_class_and_of_its_tenant_is_told_apart() -> None:
    bench, small, large = Bench(), NamedPlan("small"), NamedPlan("large")
    bench.add(CHAT, 100, 0.0, small)
    for _ in range(3):
        bench.add(CHAT, 30, 0.0, large)
    bench.add(RAG, 500, 0.0, small)
    around = bench.around(CHAT, 5.0, small)
    assert around.of_class == pytest.approx(1 + 3)
    assert (around.own_sequences, around.own_tokens) == (1, 100)
    assert around.sequences > around.of_class


def test_what_comes_soon_enough_passes() -> None:
    bench = Bench()
    for traffic_class in (CHAT, RAG, BATCH):
        bench.add(traffic_class, 10, 0.0)
    inflows = {"interactive": 100.0, "rag": 500.0, "batch": 1000.0}
    chat, rag, batch = (
        bench.around(each, 0.0, own_inflow=inflows[each.name], **inflows) for each in (CHAT, RAG, BATCH)
    )
    assert (chat.overtaking, chat.overtaking_most) == (0.0, 0.0)
    # Until the rest of the four seconds between what they promise is over.
    assert (rag.overtaking, rag.overtaking_most) == (100.0, 400.0)
    assert (batch.overtaking, batch.overtaking_most) == (600.0, 100.0 * 59 + 500.0 * 55)
    assert {each.inflow for each in (chat, rag, batch)} == {1600.0}


def test_other_tenants_pass_one_that_floods_up_to_their_shares() -> None:
    bench, flood, light = Bench(), NamedPlan("flood"), NamedPlan("light", weight=2.0)
    bench.add(CHAT, 100, 0.0, light)
    for _ in range(10):
        bench.add(CHAT, 100, 0.0, flood)
    around = bench.around(CHAT, 0.1, flood, own_inflow=900.0, interactive=1000.0)
    assert around.tokens == 1100
    assert around.overtaking == 100.0
    # While a thousand tokens of its own are served, the other, of twice the weight, may have two thousand.
    assert around.overtaking_most == pytest.approx(2000 - 100)
    passed = bench.around(CHAT, 0.1, light, own_inflow=100.0, interactive=1000.0)
    assert passed.tokens < 200
    assert passed.overtaking_most <= 50


def test_whoever_asks_for_less_than_his_part_passes_and_the_others_steps_are_short_for_him() -> None:
    bench, small, flood = Bench(), NamedPlan("small"), NamedPlan("flood")
    bench.queue.set_owed(1000.0)
    bench.add(CHAT, 10, 0.0, small)
    bench.add(CHAT, 400, 0.0, flood)
    queue = bench.queue.classes["interactive"]
    queue.lines["flood"].share.charge(400, 1.0)
    bench.queue.remove(queue.lines["small"].sequences[0])
    around = {tenant.tenant: bench.around(CHAT, 0.1, tenant) for tenant in (small, flood)}
    assert (around["small"].owed_turn, around["small"].paced) == (True, False)
    assert (around["flood"].owed_turn, around["flood"].paced) == (False, True)
    # He has not asked for long.
    assert not bench.around(CHAT, 100.0, flood).paced
    # Where all are one nothing is owed to anybody.
    alone = Bench()
    alone.queue.set_owed(1000.0)
    alone.add(CHAT, 400, 0.0)
    assert not alone.around(CHAT, 0.1).paced
    assert not alone.around(CHAT, 0.1).owed_turn
