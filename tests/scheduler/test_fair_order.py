"""The order of service, and the bounds that it promises."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from bench_queue import BATCH, INTERACTIVE, RAG, Bench
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fair_order import FairOrder, aged, due, due_after
from scheduler.sequence import Sequence


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
