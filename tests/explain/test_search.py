"""What an id means, or the beginning of one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tercet.explain.search import Found, find
from tercet.explain.story import Story
from tercet.ledger.row import Outcome, Row

NOW = 1_764_500_000.0


def row(request_id: str, arrived_at: float = NOW, tenant: str = "", outcome: Outcome = Outcome.COMPLETED) -> Row:
    total_s = None if outcome is Outcome.OPEN else 2.0
    return Row(1, request_id, tenant, "interactive", "small", "r1", 1, arrived_at, outcome, total_s=total_s)


def story(request_id: str, arrived_at: float = NOW, tenant: str = "", **changes: Any) -> Story:
    told = Story(request_id, tenant, "interactive", "small", 9, arrived_at, arrived_at - 1, arrived_at + 10, whole=True)
    return dataclasses.replace(told, **changes)


def ids(found: list[Found]) -> list[tuple[str, str]]:
    return [(each.request_id, each.tenant) for each in found]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("ab", ["ab-1", "ab-2"]), ("ab-1", ["ab-1"]), ("x", ["x"]), ("", ["ab-1", "ab-2", "x"]), ("c", []), ("AB", [])],
)
def test_whole_ids_and_beginnings(prefix: str, expected: list[str]) -> None:
    found = find(prefix, [row("ab-1"), row("x")], [story("ab-2"), story("ab-1")])
    assert [each.request_id for each in found] == expected


def test_a_whole_id_leaves_out_those_that_only_begin_so() -> None:
    assert ids(find("ab", [row("abc"), row("ab")], [story("abcd")])) == [("ab", "")]


def test_ids_are_a_tenants_own() -> None:
    rows = [row("ab", tenant="alice"), row("ab", tenant="bob")]
    assert ids(find("ab", rows, [])) == [("ab", "alice"), ("ab", "bob")]
    assert ids(find("ab", rows, [story("ab", tenant="bob")], tenant="bob")) == [("ab", "bob")]


def test_row_and_story_of_the_same_moment_belong_together() -> None:
    (found,) = find("ab", [row("ab")], [story("ab", NOW + 0.1), story("ab", NOW - 60.0)])
    assert found.row is not None
    assert [each.arrived_at for each in found.stories] == [NOW + 0.1]


def test_the_newest_of_an_id_is_meant() -> None:
    (found,) = find("ab", [row("ab", NOW - 100), row("ab")], [])
    assert (found.arrived_at, found.earlier) == (NOW, 1)
    # The newest is refused, so the ledger has no row of it.
    (found,) = find("ab", [row("ab", NOW - 100)], [story("ab", refused="QUEUE_FULL")])
    assert (found.row, found.arrived_at, found.earlier) == (None, NOW, 1)


def test_what_moved_to_another_scheduler_is_one_request() -> None:
    stories = [story("ab", NOW + 1, taken_over=True), story("ab", NOW)]
    (found,) = find("ab", [], stories)
    assert [each.arrived_at for each in found.stories] == [NOW, NOW + 1]
    (found,) = find("ab", [row("ab", outcome=Outcome.OPEN)], stories)
    assert len(found.stories) == 2
