"""How long prompts and outputs are, in tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from .workload_error import WorkloadError, number, whole

MAX_TOKENS = 1 << 24

# Log-normal around a median, with a longest.
INPUTS: Mapping[str, str] = {
    "short": "lognormal:64,0.6,512",
    "medium": "lognormal:512,0.6,2048",
    "long": "lognormal:2048,0.5,6144",
    "prefill-heavy": "uniform:4096-7168",
}
OUTPUTS: Mapping[str, str] = {
    "short": "lognormal:16,0.5,64",
    "chat": "lognormal:128,0.7,512",
    "long": "lognormal:512,0.5,1536",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts from `least` to `most`: all of them alike likely, or log-normal around `median`, cut off."""

    least: int
    most: int
    median: float | None = None
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """One of them."""
        if self.median is None:
            return rng.randint(self.least, self.most)
        return max(self.least, min(self.most, round(self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0)))))


def parse_lengths(field: str, text: str, presets: Mapping[str, str]) -> Lengths:
    """A preset, ``constant:N``, ``uniform:A-B`` or ``lognormal:MEDIAN,SIGMA[,MOST]``. Raises WorkloadError."""
    kind, _, rest = presets.get(text, text).partition(":")
    if kind == "constant":
        count = whole(field, rest, least=1, most=MAX_TOKENS)
        return Lengths(count, count)
    if kind == "uniform":
        low, dash, high = rest.partition("-")
        if not dash:
            raise WorkloadError(field, f"{text!r} is not uniform:A-B")
        least = whole(field, low, least=1, most=MAX_TOKENS)
        return Lengths(least, whole(field, high, least=least, most=MAX_TOKENS))
    if kind == "lognormal":
        parts = rest.split(",")
        if len(parts) not in (2, 3):
            raise WorkloadError(field, f"{text!r} is not lognormal:MEDIAN,SIGMA or lognormal:MEDIAN,SIGMA,MOST")
        median = number(field, parts[0], least=1, most=MAX_TOKENS)
        most = whole(field, parts[2], least=math.ceil(median), most=MAX_TOKENS) if len(parts) == 3 else MAX_TOKENS
        return Lengths(1, most, median, number(field, parts[1], most=4.0))
    raise WorkloadError(
        field, f"{text!r} is none of {', '.join(presets)}, constant:N, uniform:A-B, lognormal:MEDIAN,SIGMA[,MOST]"
    )
