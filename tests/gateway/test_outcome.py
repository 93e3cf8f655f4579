"""Every end of a request has one outcome, and every error one that says whose doing it was."""

from __future__ import annotations

import pytest

from gateway.cancel import CancelOrigin
from gateway.outcome import outcome_of_cancel, outcome_of_error, outcome_of_output
from gateway.output import Finish
from gateway.sequence_end import EndReason
from tercet import errors
from tercet.ledger.row import Outcome

# What is not refused, though it has not been admitted; and what has not failed, though it has.
WAITING = {
    errors.RequestCancelledError: Outcome.CANCELLED,
    errors.SlowConsumerError: Outcome.CANCELLED,
    errors.DeadlineError: Outcome.EXPIRED,
    errors.QueueExpiredError: Outcome.EXPIRED,
}
RUNNING = {
    **WAITING,
    errors.NoWorkerError: Outcome.LOST,
    errors.SchedulerLostError: Outcome.LOST,
    errors.WorkerLostError: Outcome.LOST,
}


@pytest.mark.parametrize("cls", errors.request_error_types().values(), ids=lambda cls: cls.reason)
def test_errors(cls: type[errors.RequestError]) -> None:
    error = cls("what happened")
    assert outcome_of_error(error, admitted=False) == (WAITING.get(cls, Outcome.REFUSED), cls.reason)
    assert outcome_of_error(error, admitted=True) == (RUNNING.get(cls, Outcome.FAILED), cls.reason)


@pytest.mark.parametrize("origin", list(CancelOrigin))
def test_cancels(origin: CancelOrigin) -> None:
    outcome, reason = outcome_of_cancel(origin)
    if origin is CancelOrigin.DEADLINE:
        assert (outcome, reason) == (Outcome.EXPIRED, errors.DeadlineError.reason)
    else:
        assert (outcome, reason) == (Outcome.CANCELLED, origin.value)


def test_outputs() -> None:
    stop, length = Finish(EndReason.STOP), Finish(EndReason.LENGTH)
    assert outcome_of_output([stop], handed_over=True) == (Outcome.COMPLETED, "stop")
    assert outcome_of_output([stop, length, stop], handed_over=True) == (Outcome.COMPLETED, "length,stop")
    assert outcome_of_output([length], handed_over=False) == (Outcome.CANCELLED, "length")
    assert outcome_of_output([], handed_over=False) == (Outcome.CANCELLED, "client")
