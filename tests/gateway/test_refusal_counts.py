"""Counts of refusals: however many names clients make up, there are no more kinds than that."""

from __future__ import annotations

from gateway.refusal_counts import MAX_KINDS, RefusalCounts, RefusalKind


def test_names_that_are_made_up_are_counted_as_none() -> None:
    counts = RefusalCounts()
    for number in range(3 * MAX_KINDS):
        counts.note(RefusalKind("a", f"class-{number}", "MODEL_NOT_FOUND"))
    found = counts.take()
    assert len(found) == MAX_KINDS + 1
    assert sum(found.values()) == 3 * MAX_KINDS
    assert found[RefusalKind("a", "", "MODEL_NOT_FOUND")] == 2 * MAX_KINDS
    assert counts.take() == {}
