"""The fault matrix's judge of the ledger: which rows agree with what a client got."""

from __future__ import annotations

import pytest

from bench.books import Entry
from bench.fault_streams import FINISHED, Stream, judge_entries
from tercet.ledger.row import Outcome


def judged(end: str, outcome: Outcome, reason: str, delivered: int, *, whole: bool = True) -> bool:
    """Whether such a row of a client that got 20 tokens and that end is well."""
    stream = Stream("run-1-1", 1, token_ids=[7] * 20, ends=[end])
    entry = Entry(outcome, reason, delivered + 5, delivered, 5)
    return not judge_entries(stream, [entry], may_be_lost=False, whole=whole)


@pytest.mark.parametrize("whole", [True, False])
def test_one_that_finished_has_all_its_tokens_in_a_completed_row(whole: bool) -> None:
    assert judged(FINISHED, Outcome.COMPLETED, "length", 20, whole=whole)
    assert not judged(FINISHED, Outcome.COMPLETED, "length", 19, whole=whole)
    assert not judged(FINISHED, Outcome.LOST, "SCHEDULER_LOST", 20, whole=whole)


def test_one_that_failed_has_its_tokens_and_its_error_in_the_row_if_its_connection_was_whole() -> None:
    assert judged("SCHEDULER_LOST", Outcome.LOST, "SCHEDULER_LOST", 20)
    assert not judged("SCHEDULER_LOST", Outcome.LOST, "SCHEDULER_LOST", 160)
    assert not judged("SCHEDULER_LOST", Outcome.FAILED, "ENGINE_FAULT", 20)
    assert not judged("SCHEDULER_LOST", Outcome.COMPLETED, "length", 20)
    assert judged("GATEWAY_LOST", Outcome.COMPLETED, "length", 160, whole=False)


def test_a_row_that_is_open_or_not_there_or_there_twice_is_not_well() -> None:
    stream = Stream("run-1-1", 1, token_ids=[7], ends=["GATEWAY_LOST"])
    lost = Entry(Outcome.LOST, "GATEWAY_LOST", None, None, None)
    unwritten = Entry(Outcome.OPEN, "", None, None, None)
    for rows in ([], [lost, lost], [unwritten]):
        assert judge_entries(stream, rows, may_be_lost=True, whole=False)
    assert not judge_entries(stream, [lost], may_be_lost=True, whole=False)
