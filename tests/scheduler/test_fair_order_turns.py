"""The order of service against one that is found anew for every turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from bench_queue import BATCH, INTERACTIVE, RAG, Bench
from hypothesis import given
from hypothesis import strategies as st

from scheduler.fair_order import FairOrder
from scheduler.sequence import Sequence
from scheduler.traffic_class import CLASSES
from scheduler.waiting import WaitingQueue


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
