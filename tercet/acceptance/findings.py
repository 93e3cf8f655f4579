"""What was found to be wrong, of so many that were looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Findings:
    """`looked_at` 0 is: nothing could be looked at. `wrong` are for people, a line each."""

    looked_at: int
    wrong: tuple[str, ...] = ()
