"""The order of service against one that is found anew for every turn, and the bounds that it promises."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import sequence_of

from scheduler.fair_order import FairOrder, aged, due, due_after, work_ahead
from scheduler.sequence import Request, Sequence
from scheduler.simulator.small import submission
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, TrafficClass
from scheduler.waiting import WaitingQueue

INTERACTIVE, RAG, BATCH = (CLASSES[name] for name in ("interactive", "rag", "batch"))


class Bench:
    """A queue that sequences are put into."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self._last = 0

    def add(
        self,
        tenant: str = "",
        traffic_class: TrafficClass = INTERACTIVE,
        length: int = 10,
        *,
        weight: float = 1.0,
        at: float = 0.0,
        priority: int = 0,
        **changes: Any,
    ) -> Sequence:
        self._last += 1
        asked = submission(self._last, [1] * length, priority=priority)
        plan = NamedPlan(tenant, weight=weight)
        request = Request(1, asked, at, None, tenant=plan, traffic_class=traffic_class)
        claim = traffic_class.claim(at, self._last)
        sequence = sequence_of(request, self._last, [1] * length, length + 100, claim=claim, **changes)
        self.queue.add(sequence)
        return sequence

    def order(self, now: float = 0.0, skip: frozenset[int] = frozenset()) -> list[Sequence]:
        """Who is served, one after the other, nothing else happening."""
        walk = FairOrder(self.queue, now, skip)
        found = []
        while walk.next is not None:
            found.append(walk.next)
            walk.advance()
        return found

    def start(self, now: float = 0.0) -> Sequence:
        """The next one starts."""
        walk = FairOrder(self.queue, now)
        assert walk.next is not None
        walk.next.hurried = walk.hurried
        self.queue.start(walk.next)
        return walk.next


@dataclass
class Twin:
    """The order of service, slowly: for every turn it looks at everybody."""

    now: float
    scarce: bool
    waiting: list[Sequence]
    # By class, and by class and tenant.
    classes: dict[str, Fraction] = field(default_factory=dict)
    tenants: dict[tuple[str, str], Fraction] = field(default_factory=dict)

    @classmethod
    def of(cls, queue: WaitingQueue, now: float, skip: frozenset[int], *, scarce: bool) -> Twin:
        twin = cls(now, scarce, [each for each in queue if each.sequence_id not in skip])
        for name, of_class in queue.classes.items():
            twin.classes[name] = Fraction(of_class.share.served)
            for tenant, line in of_class.lines.items():
                twin.tenants[name, tenant] = Fraction(line.share.served)
        return twin

    def turn(self) -> tuple[Sequence, bool, bool]:
        """Whose it is, whether it is due, and whether it is ahead of the turn of its class."""
        firsts: dict[str, Sequence] = {}
        lines: dict[str, list[Sequence]] = {}
        for name in {each.request.traffic_class.name for each in self.waiting}:
            mine = [each for each in self.waiting if each.request.traffic_class.name == name]
            of_tenants = []
            for tenant in {each.request.tenant.tenant for each in mine}:
                line = [each for each in mine if each.request.tenant.tenant == tenant]
                of_tenants.append(min(line, key=lambda each: (each.placements == 0, each.urgency)))
            lines[name] = of_tenants
            firsts[name] = min(
                of_tenants, key=lambda each: (self.tenants[name, each.request.tenant.tenant], each.arrival)
            )
        by_weight = sorted(firsts, key=lambda name: (self.classes[name], firsts[name].request.traffic_class.rank, name))
        due = [name for name in by_weight if self._due(name, firsts[name], lines[name])]
        promised = [name for name in by_weight if CLASSES[name].ttft and (self.scarce or name in due)]
        chosen = rival = by_weight[0]
        if promised:
            # Those at stake by when they are broken, then the others by their rank.
            at_stake = [name for name in promised if name in due]
            chosen = min(at_stake or promised, key=lambda name: CLASSES[name].rank)
            if at_stake:
                chosen = min(at_stake, key=lambda name: (self._broken(firsts[name]), CLASSES[name].rank))
            patient = [name for name in due if not CLASSES[name].ttft]
            if patient:
                rival = patient[0]
                chosen = next(name for name in by_weight if name in (chosen, rival))
        return firsts[chosen], chosen in due, self.classes[chosen] > self.classes[rival]

    def serve(self, sequence: Sequence, hurried: bool) -> None:
        self.waiting.remove(sequence)
        if not sequence.placements:
            name, tenant = sequence.request.traffic_class.name, sequence.request.tenant
            tokens = len(sequence.token_ids)
            self.tenants[name, tenant.tenant] += Fraction(tokens / tenant.weight)
            if not hurried:
                self.classes[name] += Fraction(tokens / CLASSES[name].weight)

    def _due(self, name: str, first: Sequence, lines: list[Sequence]) -> bool:
        target = CLASSES[name].ttft
        if target is not None:
            return self.now - first.request.arrived_at >= target.seconds / 2
        return any(self.now - each.request.arrived_at >= CLASSES[name].patience_s for each in lines)

    def _broken(self, first: Sequence) -> float:
        target = first.request.traffic_class.ttft
        assert target is not None
        return first.request.arrived_at + target.seconds


@given(st.data())
def test_the_order_is_that_of_who_looks_at_everybody_for_every_turn(data: st.DataObject) -> None:
    bench = Bench()
    tenants = {name: data.draw(st.sampled_from([0.5, 1.0, 4.0])) for name in "abc"}
    names, moments = st.sampled_from("abc"), st.sampled_from([0.0, 10.0, 57.0, 59.0, 59.5, 59.75])
    for _ in range(data.draw(st.integers(1, 14))):
        tenant = data.draw(names)
        bench.add(
            tenant,
            data.draw(st.sampled_from([INTERACTIVE, RAG, BATCH])),
            data.draw(st.sampled_from([1, 8, 64])),
            weight=tenants[tenant],
            at=data.draw(moments),
            priority=data.draw(st.integers(-1, 1)),
            placements=data.draw(st.sampled_from([0, 0, 1])),
        )
    for _ in range(data.draw(st.integers(0, 5))):
        if len(bench.queue) > 1:
            bench.start(60.0)
    skip = frozenset(each.sequence_id for each in bench.queue if data.draw(st.integers(0, 4)) == 0)
    now = data.draw(st.sampled_from([60.0, 61.5, 120.0]))
    scarce = data.draw(st.booleans())
    twin = Twin.of(bench.queue, now, skip, scarce=scarce)
    walk = FairOrder(bench.queue, now, skip, scarce=scarce)
    length = len(twin.waiting)
    for _ in range(length):
        sequence, due, hurried = twin.turn()
        assert walk.next is sequence
        assert (walk.due, walk.hurried) == (due, hurried)
        twin.serve(sequence, hurried)
        walk.advance()
    assert walk.next is None


@given(st.data())
def test_what_starts_as_it_is_listed_leaves_the_order_of_the_others(data: st.DataObject) -> None:
    bench = Bench()
    for _ in range(data.draw(st.integers(1, 12))):
        bench.add(
            data.draw(st.sampled_from("abc")),
            data.draw(st.sampled_from([INTERACTIVE, RAG, BATCH])),
            data.draw(st.integers(1, 64)),
            at=data.draw(st.sampled_from([0.0, 59.0, 60.0])),
        )
    listed = bench.order(60.0)
    assert sorted(each.sequence_id for each in listed) == sorted(each.sequence_id for each in bench.queue)
    for sequence in listed:
        assert bench.start(60.0) is sequence


@given(st.integers(0, 2**32), st.sampled_from([(1.0, 1.0), (1.0, 3.0), (0.5, 2.0)]))
def test_two_tenants_who_always_ask_get_the_same_by_weight_within_what_a_batch_holds(
    seed: int, weights: tuple[float, float]
) -> None:
    rng, bench = random.Random(seed), Bench()
    of_tenant = dict(zip("ab", weights, strict=True))
    longest, most_tokens, places = 200, 100, 4
    served, running = dict.fromkeys("ab", 0.0), dict[int, tuple[Sequence, int]]()

    def ask(tenant: str) -> None:
        bench.add(tenant, length=rng.randrange(1, longest + 1), weight=of_tenant[tenant])

    for tenant in "aabb":
        ask(tenant)
    for _ in range(200):
        while len(running) < places:
            sequence = bench.start()
            tenant = sequence.request.tenant.tenant
            # Somebody else of it waits at once.
            ask(tenant)
            served[tenant] += len(sequence.token_ids) / of_tenant[tenant]
            running[sequence.sequence_id] = sequence, rng.randrange(1, most_tokens + 1)
        for key, (sequence, left) in list(running.items()):
            tokens, tenant = min(left, rng.randrange(20)), sequence.request.tenant.tenant
            sequence.token_ids += [7] * tokens
            bench.queue.charge_tokens(sequence)
            served[tenant] += tokens / of_tenant[tenant]
            running[key] = sequence, left - tokens
            if left == tokens:
                del running[key]
        # Nobody starts who is ahead: then he has got one more prompt, and what those get that run.
        assert abs(served["a"] - served["b"]) <= (longest + places * most_tokens) / min(weights)


def test_a_tenant_who_comes_back_goes_first_but_is_owed_nothing() -> None:
    bench = Bench()
    flood = [bench.add("flood", length=100) for _ in range(50)]
    for _ in range(10):
        bench.queue.settle(bench.start())
    quiet = [bench.add("quiet", length=100) for _ in range(5)]
    # One each, in turns: not all at once, for the time in which it did not ask.
    turns = bench.order()[:10]
    assert turns == [each for pair in zip(flood[10:15], quiet, strict=True) for each in pair]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 300.0]), st.sampled_from([1.0, 3.0]))
def test_in_no_time_does_who_comes_and_goes_get_more_than_its_part_and_what_is_owed(
    seed: int, owed: float, weight: float
) -> None:
    rng, bench = random.Random(seed), Bench()
    bench.queue.set_owed(owed)
    of_tenant = {"flood": 1.0, "guest": weight}
    longest, most_tokens, places = 50, 30, 4
    served, running = dict.fromkeys(of_tenant, 0.0), dict[int, tuple[Sequence, int]]()
    least_lead = most_gain = 0.0

    def ask(tenant: str) -> None:
        bench.add(tenant, length=rng.randrange(1, longest + 1), weight=of_tenant[tenant])

    ask("flood")
    ask("flood")
    for _ in range(300):
        if rng.random() < 0.05:
            for _ in range(rng.randrange(1, 20)):
                ask("guest")
        while len(running) < places:
            sequence = bench.start()
            tenant = sequence.request.tenant.tenant
            if tenant == "flood":
                ask("flood")
            served[tenant] += len(sequence.token_ids) / of_tenant[tenant]
            bench.queue.note_prefill(sequence, 0, sequence.prompt_length)
            running[sequence.sequence_id] = sequence, rng.randrange(1, most_tokens + 1)
        for key, (sequence, left) in list(running.items()):
            tokens, tenant = min(left, rng.randrange(10)), sequence.request.tenant.tenant
            sequence.token_ids += [7] * tokens
            bench.queue.charge_tokens(sequence)
            served[tenant] += tokens / of_tenant[tenant]
            running[key] = sequence, left - tokens
            if left == tokens:
                del running[key]
        lead = served["guest"] - served["flood"]
        least_lead = min(least_lead, lead)
        most_gain = max(most_gain, lead - least_lead)
    # And a prompt, what those get that run when it comes, and what its own get when it is ahead.
    assert most_gain <= owed / weight + longest + 2 * places * most_tokens


def test_to_whom_something_is_owed_is_first_and_a_part_is_kept_for_it() -> None:
    bench = Bench()
    bench.queue.set_owed(250.0)
    for _ in range(9):
        bench.add("flood", length=100)
    for _ in range(6):
        bench.queue.settle(bench.start())
    for _ in range(4):
        bench.add("quiet", length=100)
    bench.add("other", BATCH)
    walk, found = FairOrder(bench.queue, 0.0), []
    while walk.next is not None:
        if walk.next.request.traffic_class is INTERACTIVE:
            found.append((walk.next.request.tenant.tenant, walk.owed_turn, walk.reserved))
        else:
            assert not walk.reserved
        walk.advance()
    assert walk.awaited == {"interactive"}
    assert found == [
        ("quiet", True, False),
        ("quiet", True, False),
        ("quiet", True, False),
        ("flood", False, True),
        ("quiet", False, True),
        ("flood", False, True),
        ("flood", False, True),
    ]


def test_weights_are_parts_of_the_work() -> None:
    bench = Bench()
    for _ in range(120):
        bench.add("small", length=10, weight=1.0)
        bench.add("large", length=10, weight=3.0)
    tenants = [each.request.tenant.tenant for each in bench.order()[:120]]
    assert 88 <= tenants.count("large") <= 92


def test_classes_share_by_weight_while_no_promise_is_at_stake() -> None:
    bench = Bench()
    for _ in range(200):
        for each in (INTERACTIVE, RAG, BATCH):
            bench.add(traffic_class=each, length=10)
    names = [each.request.traffic_class.name for each in bench.order()[:130]]
    assert [names.count(name) for name in ("interactive", "rag", "batch")] == [80, 40, 10]


def test_a_promise_at_stake_goes_first_the_earliest_to_be_broken_before_all() -> None:
    bench = Bench()
    batch = bench.add(traffic_class=BATCH, at=9.0)
    rag = bench.add(traffic_class=RAG, at=6.0)
    interactive = bench.add(at=9.4)
    assert bench.order(9.5) == [rag, interactive, batch]
    # Due at 9.9, broken at 10.4; that of rag is broken at 11.
    assert bench.order(9.9) == [interactive, rag, batch]


def test_patience_gives_a_class_its_share_where_promises_are_at_stake_all_the_time_and_no_more() -> None:
    bench = Bench()
    for _ in range(100):
        bench.add(at=98.0, length=10)
        bench.add(traffic_class=BATCH, at=40.0, length=10)
    # Before: nothing of it, whatever it has not had.
    assert {each.request.traffic_class for each in bench.order(99.9)[:100]} == {INTERACTIVE}
    names = [each.request.traffic_class.name for each in bench.order(100.0)[:90]]
    assert names.count("batch") == 10
    # What promises took meanwhile is not owed to it.
    for _ in range(50):
        assert bench.start(99.9).request.traffic_class is INTERACTIVE
        bench.add(at=98.0, length=10)
    names = [each.request.traffic_class.name for each in bench.order(100.0)[:90]]
    assert names.count("batch") == 10


@given(st.data())
def test_nobody_waits_for_longer_than_patience_and_his_part_of_what_his_class_gets(data: st.DataObject) -> None:
    patient, bench = replace(BATCH, patience_s=10.0), Bench()
    tenants = "abc"[: data.draw(st.integers(1, 3))]
    length = {tenant: data.draw(st.sampled_from([1, 10])) for tenant in tenants}
    # Each has something waiting from the start, and asks again every few seconds.
    period = {tenant: data.draw(st.sampled_from([3, 9, 11, 200])) for tenant in tenants}
    ahead: dict[Sequence, int] = {}
    asked: Counter[str] = Counter()

    def ask(tenant: str, now: float) -> None:
        waiting = sum(each.request.tenant.tenant == tenant for each in ahead)
        ahead[bench.add(tenant, patient, length[tenant], at=now)] = waiting
        asked[tenant] += 1

    for tenant in tenants:
        for _ in range(data.draw(st.sampled_from([0, 1, 30]))):
            ask(tenant, 0.0)
    chat, per_turn = 10, INTERACTIVE.weight / BATCH.weight
    for second in range(1, 150):
        now = float(second)
        for tenant in tenants:
            if second % period[tenant] == 0:
                ask(tenant, now)
        # In each second one is served, and a promise is at stake.
        bench.add("chats", length=chat, at=now - 0.9)
        ahead.pop(bench.start(now), None)
        for sequence, before in ahead.items():
            mine = sequence.request.tenant.tenant
            tokens, turns = float((before + 1) * length[mine]), float(before + 1)
            for other in set(tenants) - {mine}:
                # As much as it and those before it, and one more.
                most = (before + 1) * length[mine] + length[other]
                tokens += min(most, asked[other] * length[other])
                turns += min(most / length[other], asked[other])
            limit = patient.patience_s + turns + per_turn * (tokens / chat + 1) + 1
            assert now - sequence.request.arrived_at <= limit


def test_where_places_are_scarce_promises_are_first_and_patience_has_its_share() -> None:
    bench = Bench()
    for _ in range(20):
        for each in (BATCH, RAG, INTERACTIVE):
            bench.add(traffic_class=each, length=10, at=10.0)

    def names(now: float) -> list[str]:
        walk, found = FairOrder(bench.queue, now, scarce=True), []
        while walk.next is not None:
            found.append(walk.next.request.traffic_class.name)
            walk.advance()
        return found

    assert names(10.1) == ["interactive"] * 20 + ["rag"] * 20 + ["batch"] * 20
    assert 1 <= names(70.0)[:18].count("batch") <= 2


def test_who_comes_back_is_ahead_of_its_line_and_costs_nothing() -> None:
    bench = Bench()
    flood = [bench.add("a", length=50) for _ in range(4)]
    back = [bench.add("a", length=5000, placements=1) for _ in range(2)]
    other = bench.add("b", length=10)
    order = bench.order()
    assert [each for each in order if each in flood or each in back] == back + flood
    # The two had been charged before: the others of the line wait for nobody because of them.
    assert order.index(other) <= 3


def test_nobody_is_looked_at_who_is_skipped_and_whole_tenants_and_classes_can_be_passed() -> None:
    bench = Bench()
    first, second = bench.add("a"), bench.add("a")
    other, batch = bench.add("b"), bench.add("c", BATCH)
    assert bench.order(skip=frozenset({first.sequence_id})) == [second, batch, other]
    walk = FairOrder(bench.queue, 0.0, frozenset({first.sequence_id}))
    seen = []
    while walk.next is not None:
        seen.append(walk.next)
        if walk.next is second:
            walk.pass_tenant()
        elif walk.next is batch:
            walk.pass_class()
        else:
            walk.advance()
    assert sorted(each.sequence_id for each in seen) == [2, 3, 4]
    bench.add("c", BATCH)
    walk = FairOrder(bench.queue, 0.0)
    while walk.next is not None and walk.next.request.traffic_class is INTERACTIVE:
        walk.pass_tenant()
    assert walk.next is batch
    walk.pass_class()
    assert walk.next is None or walk.next.request.traffic_class is INTERACTIVE


def test_one_that_is_due_at_once_is_before_all_whose_promises_are_not_at_stake() -> None:
    bench = Bench()
    chat, batch = bench.add("a"), bench.add("b", BATCH)
    bench.queue.classes[INTERACTIVE.name].share.served = 1e6
    assert bench.order(now=0.1) == [batch, chat]
    assert not due(bench.queue.classes[INTERACTIVE.name], 0.1)
    chat.request.due_s = 0.0
    assert due(bench.queue.classes[INTERACTIVE.name], 0.1)
    assert bench.order(now=0.1) == [chat, batch]


def test_due_is_half_of_a_promise_or_the_whole_patience() -> None:
    assert (due_after(INTERACTIVE), due_after(RAG), due_after(BATCH)) == (0.5, 2.5, 60.0)
    request = Bench().add(traffic_class=BATCH, at=5.0).request
    assert not aged(request, 64.9)
    assert aged(request, 65.0)
    assert not aged(replace(request, traffic_class=RAG), 1000.0)


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
