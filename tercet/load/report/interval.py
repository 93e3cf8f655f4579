"""How much a figure changed, and between which bounds that lies with 95 %. Pure.

One run a side: the middle 95 % of what runs drawn from pieces say (the percentile bootstrap), and a little more, as few
pieces need it (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015). Several: runs are what is drawn,
since what differs from run to run (where memory came to lie, how warm a processor is, what else a machine does) is more
than what differs inside one, and no piece of a run knows of it. The variance of a mean of k runs drawn with replacement
is known without drawing any: (k - 1) / k of what it should be. And so few draws hold the truth too rarely: three runs
all lie on one side of it in one case of four. So the variance is taken with k - 1, and the interval by Student's t with
Welch's degrees of freedom. Pieces are not drawn on top: runs differ by theirs already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from .columns import Floats

# If more drawn runs than this have no figure, it is not known.
_MAX_UNKNOWN = 0.05
# Of logarithms; beyond it a number is as good as infinite.
_FAR = 500.0
# The 97.5 % point of Student's t by its degrees of freedom, from any table of it; between these by 1 / freedom.
_STUDENT = ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (8, 2.306), (10, 2.228),
            (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (math.inf, 1.960))  # fmt: skip

# Relative: to the figure of A, in percent. Points: the difference of two shares in percent.
Scale = Literal["relative", "points"]


@dataclass(frozen=True, slots=True)
class Side:
    """One figure of one side. `value`: of its run, or the mean of its runs; `runs`: the figure of each. `draws`: of
    runs that were drawn from so many `pieces`, [draws]; empty if there are several runs, and not needed."""

    value: float
    runs: Sequence[float]
    draws: Floats
    pieces: int

    @property
    def variance(self) -> float:
        """Of `value`."""
        count = len(self.runs)
        return float(np.var(self.runs, ddof=1)) / count if count > 1 else float(np.nanvar(self.draws))

    @property
    def freedom(self) -> float:
        """Of that variance."""
        return len(self.runs) - 1 if len(self.runs) > 1 else math.inf


@dataclass(frozen=True, slots=True)
class Change:
    """From A to B, in percent of A or in percentage points."""

    value: float
    low: float
    high: float


def change(a: Side, b: Side, scale: Scale) -> Change | None:
    """None where it is not known: relative to 0 or, with several runs, down to 0; too many drawn runs without a
    figure."""
    if scale == "relative" and a.value == 0:
        return None
    value = float(_difference(np.asarray(a.value), np.asarray(b.value), scale))
    if len(a.runs) == len(b.runs) == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            differences = _difference(a.draws, b.draws, scale)
        known = np.sort(differences[~np.isnan(differences)])
        if len(known) < (1 - _MAX_UNKNOWN) * len(differences) or not len(known):
            return None
        outside = _share_outside(min(a.pieces, b.pieces))
        # Ranks, since what is drawn may be infinite.
        low, high = (known[round((len(known) - 1) * share)] for share in (outside, 1 - outside))
        return Change(value, float(low), float(high))
    variances = [a.variance, b.variance]
    if scale == "relative":
        if b.value <= 0:
            return None
        # Of their logarithms, to first order: what is as many times more or less is as far away.
        variances = [side.variance / side.value**2 for side in (a, b)]
    around = student(_welch(variances, (a.freedom, b.freedom))) * math.sqrt(sum(variances))
    if scale == "points":
        return Change(value, value - around, value + around)
    around = min(around, _FAR)
    low, high = (100 * math.expm1(math.log(b.value / a.value) + each) for each in (-around, around))
    return Change(value, low, high)


def student(freedom: float) -> float:
    """How many standard errors hold 95 %."""
    at = next(index for index, (known, _) in enumerate(_STUDENT) if known >= freedom)
    upper, t = _STUDENT[at]
    if upper == freedom or at == 0:
        return t
    lower, wider = _STUDENT[at - 1]
    return t + (wider - t) * (1 / freedom - 1 / upper) / (1 / lower - 1 / upper)


def _share_outside(pieces: int) -> float:
    """Of what was drawn, below the interval and above it: so many as a normal distribution has beyond what Student's t
    says of a mean of the pieces."""
    freedom = max(1, pieces - 1)
    return NormalDist().cdf(-math.sqrt(1 + 1 / freedom) * student(freedom))


def _welch(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    total = sum(variances)
    used = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    # Runs that are all the same have no variance, and as many degrees as there are.
    return max(1.0, total**2 / used) if used > 0 else max(1.0, min(freedoms))


def _difference(a: Floats, b: Floats, scale: Scale) -> Floats:
    return b - a if scale == "points" else 100 * (b / a - 1)
