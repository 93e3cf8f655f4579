"""How long things took, counted by size: bounded, however many there were and however long they were."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2

# Bounds of buckets grow by the eighth root of two, so that a quantile is off by less than a tenth.
BUCKETS_PER_OCTAVE = 8
SHORTEST_SECONDS = 1e-3
LONGEST_SECONDS = 3600.0
LAST_BUCKET = ceil(log2(LONGEST_SECONDS / SHORTEST_SECONDS) * BUCKETS_PER_OCTAVE)


@dataclass(slots=True)
class Histogram:
    """Durations in seconds. What is shorter or longer than can be told apart counts as the shortest or the longest."""

    count: int = 0
    total_s: float = 0.0
    # Those above the bound of the bucket before and not above its own, by the bucket's number.
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """`seconds` >= 0."""
        self.count += 1
        self.total_s += seconds
        if seconds <= SHORTEST_SECONDS:
            bucket = 0
        else:
            bucket = min(ceil(log2(seconds / SHORTEST_SECONDS) * BUCKETS_PER_OCTAVE), LAST_BUCKET)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Adds what another one has counted."""
        self.count += other.count
        self.total_s += other.total_s
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def quantile(self, part: float) -> float | None:
        """Seconds that `part` of all did not exceed, to within a bucket; None if there are none."""
        if not self.count:
            return None
        left = max(1, ceil(part * self.count))
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return _bound(bucket)
        raise AssertionError("the buckets have fewer than were counted")


def _bound(bucket: int) -> float:
    """Longest of a bucket, in seconds."""
    return float(SHORTEST_SECONDS * 2 ** (bucket / BUCKETS_PER_OCTAVE))
