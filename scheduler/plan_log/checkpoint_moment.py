"""When to take the next checkpoint: a pure choice by how much was recorded and how much there is to copy."""

from __future__ import annotations

# Shares of what the recorder may keep. Before the first one a segment does not end; from the second one on it ends at a
# moment as good as the best between the two, at the third one in any case.
EARLIEST = 0.25
LATE = 0.5
LATEST = 0.75
# Of so few sequences a checkpoint takes no longer than many a plan.
FEW_SEQUENCES = 64


class CheckpointMoment:
    """Watches one segment grow."""

    def __init__(self) -> None:
        # Live sequences at the best moment between EARLIEST and LATE.
        self._fewest: int | None = None

    def has_come(self, share: float, num_sequences: int) -> bool:
        """Whether the segment, which holds `share` of what the recorder may keep, ends with this round."""
        if share < EARLIEST:
            return False
        if num_sequences <= FEW_SEQUENCES or share >= LATEST:
            return True
        if share < LATE:
            self._fewest = num_sequences if self._fewest is None else min(self._fewest, num_sequences)
            return False
        return self._fewest is None or num_sequences <= self._fewest
