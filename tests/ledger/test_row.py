"""What becomes of a promise."""

from __future__ import annotations

import pytest

from tercet.ledger.row import Outcome, Targets, slo_of

BOTH = Targets("interactive", ttft_s=1.0, gap_s=0.1)


@pytest.mark.parametrize(
    ("outcome", "targets", "ttft_s", "tpot_s", "expected"),
    [
        (Outcome.COMPLETED, BOTH, 1.0, 0.1, "met"),
        (Outcome.COMPLETED, BOTH, 1.001, 0.1, "ttft"),
        (Outcome.COMPLETED, BOTH, 1.0, 0.101, "gap"),
        (Outcome.COMPLETED, BOTH, 2.0, 0.2, "ttft+gap"),
        # One token has no gap.
        (Outcome.COMPLETED, BOTH, 0.5, None, "met"),
        (Outcome.COMPLETED, Targets("batch"), 100.0, 10.0, "met"),
        # Whose fault it was makes no difference to what was promised.
        (Outcome.FAILED, BOTH, 0.5, 0.05, "unserved"),
        (Outcome.LOST, BOTH, None, None, "ttft"),
        (Outcome.EXPIRED, Targets("batch"), None, None, "unserved"),
        (Outcome.CANCELLED, BOTH, 5.0, 5.0, None),
        (Outcome.REFUSED, BOTH, None, None, None),
        (Outcome.OPEN, BOTH, 5.0, None, None),
    ],
)
def test_promises(
    outcome: Outcome, targets: Targets, ttft_s: float | None, tpot_s: float | None, expected: str | None
) -> None:
    assert slo_of(outcome, targets, ttft_s, tpot_s) == expected
