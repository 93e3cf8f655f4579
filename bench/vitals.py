"""What processes have of their host, sampled, and whether it grows.

Knows no mesh.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

_PAGE = os.sysconf("SC_PAGE_SIZE")

# The first part of a life is left out: caches fill, pools grow to what is needed.
WARM_UP = 0.25
# Fewer samples say nothing.
LEAST_SAMPLES = 12
# What a process may grow by over the rest of its life, by the trend: bytes or a part of what it has, open files,
# threads.
RSS_BYTES = 8 << 20
RSS_PART = 0.05
FILES = 8.0
THREADS = 4.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """One process at a moment: seconds since the start of it all, bytes that are resident, open files, threads."""

    at: float
    pid: int
    rss: int
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Trend:
    """What a process has, and grows by from the end of its warm-up to the last sample. `seconds` lie between these."""

    seconds: float
    rss: float
    rss_growth: float
    files_growth: float
    threads_growth: float

    @property
    def flat(self) -> bool:
        """Whether it stays within the bounds above."""
        return (
            self.rss_growth <= max(RSS_BYTES, RSS_PART * self.rss)
            and self.files_growth <= FILES
            and self.threads_growth <= THREADS
        )


def read_vitals(pid: int, at: float) -> Vitals | None:
    """What a process has now; None if it is gone."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{pid}/fd"))
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (OSError, IndexError):
        return None
    return Vitals(at, pid, resident * _PAGE, files, threads)


def trend(samples: Sequence[Vitals]) -> Trend | None:
    """Of one process, samples in order of time. None if there are too few of them."""
    warm = samples[int(len(samples) * WARM_UP) :]
    if len(warm) < LEAST_SAMPLES:
        return None
    seconds = warm[-1].at - warm[0].at
    return Trend(
        seconds,
        median(each.rss for each in warm),
        seconds * _slope(warm, [each.rss for each in warm]),
        seconds * _slope(warm, [each.files for each in warm]),
        seconds * _slope(warm, [each.threads for each in warm]),
    )


def _slope(samples: Sequence[Vitals], values: Sequence[float]) -> float:
    """By the second: the median over all pairs, which single peaks do not move."""
    points = [(each.at, value) for each, value in zip(samples, values, strict=True)]
    return median((late[1] - early[1]) / (late[0] - early[0]) for early, late in combinations(points, 2))
