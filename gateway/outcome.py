"""How a request ended, in the words of the ledger and of logs."""

from __future__ import annotations

from collections.abc import Sequence

from tercet.errors import (
    DeadlineError,
    DeadlineUnreachableError,
    NoWorkerError,
    QueueExpiredError,
    RequestCancelledError,
    RequestError,
    SchedulerLostError,
    SlowConsumerError,
    WorkerLostError,
)
from tercet.ledger.row import Outcome

from .cancel import CancelOrigin
from .output import Finish

_UNWANTED = (RequestCancelledError, SlowConsumerError)
_LOST = (SchedulerLostError, WorkerLostError, NoWorkerError)


def outcome_of_error(error: RequestError, *, admitted: bool) -> tuple[Outcome, str]:
    """Outcome and reason of a request that ended with an error."""
    if isinstance(error, _UNWANTED):
        outcome = Outcome.CANCELLED
    elif isinstance(error, (DeadlineError, QueueExpiredError)) and not isinstance(error, DeadlineUnreachableError):
        outcome = Outcome.EXPIRED
    elif not admitted:
        # A row only if it has a cancel: its scheduler was lost, or its gateway stopped, before it was accepted.
        outcome = Outcome.REFUSED
    else:
        outcome = Outcome.LOST if isinstance(error, _LOST) else Outcome.FAILED
    return outcome, error.reason


def outcome_of_cancel(origin: CancelOrigin) -> tuple[Outcome, str]:
    """Outcome and reason of a request whose client left while it ran."""
    if origin is CancelOrigin.DEADLINE:
        return Outcome.EXPIRED, DeadlineError.reason
    return Outcome.CANCELLED, origin.value


def outcome_of_output(finishes: Sequence[Finish], *, handed_over: bool) -> tuple[Outcome, str]:
    """Outcome and reason of a request whose outputs ended well, or that had none: its client left before."""
    if not finishes:
        return Outcome.CANCELLED, CancelOrigin.CLIENT.value
    # An output that is complete but could not be handed over was cancelled by its client.
    outcome = Outcome.COMPLETED if handed_over else Outcome.CANCELLED
    return outcome, ",".join(sorted({finish.reason.value for finish in finishes}))
