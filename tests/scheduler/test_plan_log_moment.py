"""When a segment of the plan log ends, so that its loop stands still for a short time only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.plan_log.checkpoint_moment import FEW_SEQUENCES, CheckpointMoment


def ends_at(live: Sequence[int]) -> int | None:
    """The percentage at which a segment ends that grows by one percent a round, with so many sequences live in each."""
    moment = CheckpointMoment()
    return next((share for share, number in enumerate(live) if moment.has_come(share / 100, number)), None)


@pytest.mark.parametrize(
    ("live", "end"),
    [
        # Few: as soon as it is worth it.
        ([0] * 100, 25),
        ([FEW_SEQUENCES] * 100, 25),
        # As many as ever.
        ([5000] * 100, 50),
        # Many in between, then few.
        ([0] * 20 + [5000] * 20 + [10] * 60, 40),
        # As few as there had been.
        ([5000] * 30 + [800] * 5 + [5000] * 30 + [801, 800] + [5000] * 33, 66),
        # Before a segment is worth a checkpoint, few do not count.
        ([100] * 20 + [5000] * 80, 50),
        # More and more.
        (list(range(1000, 1100)), 75),
        # A single round that holds very much.
        ([5000], None),
    ],
)
def test_a_segment_ends_with_few_sequences_if_it_can(live: list[int], end: int | None) -> None:
    assert ends_at(live) == end


def test_a_segment_that_is_far_over_the_bound_ends() -> None:
    assert CheckpointMoment().has_come(12.0, 10**6)
    assert CheckpointMoment().has_come(0.6, 10**6)
