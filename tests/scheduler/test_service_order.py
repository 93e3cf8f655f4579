"""The order of prompts on one worker: of classes by claim, of tenants by what they received, of one by priority."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sequences import sequence_of

from scheduler.sequence import Request, Sequence
from scheduler.service_order import Begun, place_among
from scheduler.simulator.small import submission
from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES

INTERACTIVE, RAG = CLASSES["interactive"], CLASSES["rag"]


def newcomer(arrival: int, priority: int = 0, tenant: str = "a") -> Sequence:
    """A chat of that tenant, whose number says when it came."""
    asked = submission(arrival, [1], priority=priority)
    request = Request(1, asked, float(arrival), None, tenant=NamedPlan(tenant), traffic_class=INTERACTIVE)
    return sequence_of(request, arrival, [1], 9, claim=INTERACTIVE.claim(float(arrival), arrival))


def begun(arrival: int, tenant: str = "a", traffic_class: str = "interactive", priority: int = 0) -> Begun:
    """One that has got nothing yet, where its claim puts it."""
    place = CLASSES[traffic_class].claim(float(arrival), arrival)
    return Begun(place, traffic_class, tenant, 0.0, (place[0] + 10.0 * priority, arrival))


def passes(sequence: Sequence, *others: Begun) -> list[int]:
    """The numbers of those that it passes, its tenant having been served nothing."""
    place = place_among(others, sequence, 0.0)
    return [each.place[1] for each in others if place < each.place]


def test_priority_counts_among_a_tenants_own_of_the_class() -> None:
    assert passes(newcomer(9), begun(1), begun(2)) == []
    assert passes(newcomer(9, -1), begun(1), begun(2)) == [1, 2]
    assert passes(newcomer(9, -1), begun(1, priority=-2), begun(2)) == [2]
    # Not among those of another class, though it is the same tenant's.
    assert passes(newcomer(9, -100), begun(4, traffic_class="rag"), begun(6, traffic_class="rag")) == [6]
    # Who asks for less urgency keeps its place among others all the same.
    assert passes(newcomer(9, 100), begun(8, traffic_class="rag")) == [8]


def test_nobody_passes_another_tenant_with_a_priority() -> None:
    served = Begun((3.0, 2), "interactive", "b", -1.0, (3.0, 2))
    assert passes(newcomer(9, -100), begun(1), served, begun(3)) == [3]
    assert passes(newcomer(9, -100), begun(1), begun(2, "b", "rag"), begun(3)) == []
    assert passes(newcomer(9, -100), begun(1), begun(2, "b", "rag"), begun(7)) == [7]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from("ab"),
            st.sampled_from(["interactive", "rag"]),
            st.integers(-2, 2),
            st.sampled_from([-1.0, 0.0, 1.0]),
        ),
        max_size=8,
        unique_by=lambda row: row[0],
    ),
    st.integers(-100, 100),
    st.floats(-2, 2),
)
def test_whatever_its_priority_it_is_ahead_of_the_same_ones_of_others(
    rows: list[tuple[int, str, str, int, float]], priority: int, served: float
) -> None:
    others = [begun(*row[:4])._replace(received=row[4]) for row in rows]

    def ahead_of(priority: int) -> list[Begun]:
        place = place_among(others, newcomer(13, priority), served)
        return [
            each for each in others if (each.tenant, each.traffic_class) != ("a", "interactive") and place < each.place
        ]

    assert ahead_of(priority) == ahead_of(0)
