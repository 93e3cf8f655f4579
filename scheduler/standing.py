"""Which of a mesh's schedulers leads. Pure: who says so, and when, is others' business.

Two that do not hear of each other may both lead; then a worker obeys the one that began later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """What a scheduler says of itself. `started` and `term` are epochs: of any two the later one is larger."""

    started: int
    # When it began to lead; 0: it does not.
    term: int = 0
    # It stops, and will not lead again.
    leaving: bool = False


def leads(own: Standing, heard: Iterable[Standing]) -> bool:
    """Whether a scheduler is to lead, or to go on leading, by what is heard of the others; it may be among them."""
    others = [each for each in heard if each.started != own.started]
    if own.leaving:
        return False
    if own.term:
        return all(each.term < own.term for each in others)
    if any(each.term for each in others):
        return False
    return all(each.leaving or own.started < each.started for each in others)
