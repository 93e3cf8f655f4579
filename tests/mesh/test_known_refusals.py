"""What a gateway refuses without asking, beside the scheduler's own books: it is what these would have said."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.known_refusals import ASK_AGAIN_S, KnownRefusals
from scheduler.tenant import NamedPlan
from scheduler.usage import Demand, fresh_usage
from tercet.errors import TenantQuotaError
from tercet.failure import failure_from_proto, failure_to_proto
from tercet.tenants.plan import TenantPlan

WAY_S = st.floats(0.0005, 0.2)
ONE = Demand(1, 1, 1)


class Mesh:
    """One tenant's requests through a gateway that knows refusals, and a scheduler that has the books. What goes up or
    down takes a while, and keeps its order."""

    def __init__(self, per_minute: int, at_once: int) -> None:
        self.now = 100.0
        self.usage = fresh_usage(NamedPlan("a", requests_per_minute=per_minute, max_concurrent=at_once), self.now)
        self.known = KnownRefusals()
        self.refused_here = self.refused_there = 0
        # Accepted, and the gateway has not heard of an end.
        self.running = 0
        # Requests and answers on their way.
        self.on_the_way = 0
        self._plan = TenantPlan(requests_per_minute=per_minute, max_concurrent=at_once)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._last_up = self._last_down = self.now

    def at(self, moment: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), work))

    def run(self) -> None:
        while self._events:
            self.now, _, work = heapq.heappop(self._events)
            work()

    def ask(self, up_s: float, down_s: float, lasts_s: float) -> None:
        error = self.known.find("a", "", self._plan, self.now)
        if error is not None:
            self.refused_here += 1
            self._check(error)
            return
        sent_at = self.now
        self.on_the_way += 1
        self._last_up = max(self._last_up, self.now + up_s)
        self.at(self._last_up, lambda: self._arrive(sent_at, down_s, lasts_s))

    def elsewhere(self) -> None:
        """A request of the same tenant that comes through another gateway."""
        try:
            self.usage.check(ONE, "", self.now)
        except TenantQuotaError:
            return
        self.usage.accept(ONE, "", self.now)
        self.at(self.now + 0.3, lambda: self.usage.ended(None, 2, 0.3, self.now))

    def _arrive(self, sent_at: float, down_s: float, lasts_s: float) -> None:
        self.on_the_way -= 1
        try:
            self.usage.check(ONE, "", self.now)
        except TenantQuotaError as refused:
            self.refused_there += 1
            told = failure_from_proto(failure_to_proto(refused))
            self._tell(down_s, lambda: self.known.note("a", "", told, sent_at, self.now))
            return
        self.usage.accept(ONE, "", self.now)
        self._tell(down_s, lambda: self._run(1))
        self.at(self.now + lasts_s, lambda: self._end(lasts_s, down_s))

    def _end(self, lasted_s: float, down_s: float) -> None:
        self.usage.ended(None, 2, lasted_s, self.now)
        self._tell(down_s, lambda: self._run(-1))

    def _run(self, change: int) -> None:
        self.running += change
        (self.known.accepted if change > 0 else self.known.over)("a")

    def _tell(self, down_s: float, work: Callable[[], None]) -> None:
        def heard() -> None:
            self.on_the_way -= 1
            work()

        self.on_the_way += 1
        self._last_down = max(self._last_down, self.now + down_s)
        self.at(self._last_down, heard)

    def _check(self, error: Exception) -> None:
        assert isinstance(error, TenantQuotaError)
        assert error.retry_after_s is not None
        if error.metadata["quota"] == "max_concurrent" and self.on_the_way:
            # Whoever has heard of no end cannot tell whether there was room.
            return
        with pytest.raises(TenantQuotaError) as caught:
            self.usage.check(ONE, "", self.now)
        right = caught.value
        assert (error.metadata, error.message) == (right.metadata, right.message)
        assert right.retry_after_s is not None
        if error.metadata["quota"] == "max_concurrent":
            # As of when it was asked.
            assert abs(error.retry_after_s - right.retry_after_s) <= ASK_AGAIN_S + 1e-3
            return
        # Only if others were faster it is too early then.
        self.retry_at = max(getattr(self, "retry_at", 0.0), self.now + error.retry_after_s)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([(0, 2), (3, 0), (40, 0), (600, 0), (2, 1), (4, 1), (40, 2), (600, 3)]),
    st.lists(
        st.tuples(st.floats(0.0, 0.2) | st.floats(0.0, 1.5), WAY_S, WAY_S, st.floats(0.01, 0.2) | st.floats(0.01, 3.0)),
        min_size=5,
        max_size=60,
    ),
    st.lists(st.floats(0.0, 40.0), max_size=10),
)
def test_nothing_is_refused_that_would_be_let_in(
    limits: tuple[int, int], asks: list[tuple[float, float, float, float]], others: list[float]
) -> None:
    mesh = Mesh(*limits)
    moment = mesh.now
    for after, up_s, down_s, lasts_s in asks:
        moment += after
        mesh.at(moment, lambda way=(up_s, down_s, lasts_s): mesh.ask(*way))
    for moment in others:
        mesh.at(mesh.now + moment, mesh.elsewhere)
    mesh.run()
    assert not mesh.running


def test_the_last_of_the_minute_is_not_taken_for_one_too_many_at_a_time() -> None:
    mesh = Mesh(2, 1)
    # The first runs until 0.15, the third is the last of the minute.
    for after in (0.0, 0.1, 0.2, 0.3):
        mesh.at(100.0 + after, lambda: mesh.ask(0.001, 0.001, 0.15))
    mesh.run()
    assert mesh.refused_there == 2


def test_most_of_a_flood_is_refused_without_asking() -> None:
    mesh = Mesh(30, 0)
    for number in range(10_000):
        mesh.at(100.0 + number / 1000, lambda: mesh.ask(0.001, 0.001, 0.1))
    mesh.run()
    # Five more get in meanwhile, one each two seconds, and the scheduler is asked about once a second.
    assert mesh.refused_there < 60
    assert mesh.refused_here > 9_800


def test_who_comes_when_told_is_let_in() -> None:
    mesh = Mesh(60, 0)
    for number in range(400):
        mesh.at(100.0 + number / 1000, lambda: mesh.ask(0.002, 0.003, 0.1))
    mesh.run()
    bucket = mesh.usage.requests
    assert bucket is not None
    assert mesh.refused_here > 300
    assert bucket.seconds_until(1.0, mesh.retry_at) == 0
