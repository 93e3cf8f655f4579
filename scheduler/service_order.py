"""In which order one worker computes the prompts that it has. Pure; knows no steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from .fleet import Worker
from .sequence import Sequence
from .waiting import WaitingQueue


class Begun(NamedTuple):
    """A prompt that has its place in that order, smaller first."""

    place: tuple[float, int]
    tenant: str
    # What its tenant has received so far, for each unit of weight.
    received: float


def begun_there(worker: Worker, waiting: WaitingQueue) -> dict[str, list[Begun]]:
    """The prompts that a worker has begun, by their class."""
    begun: dict[str, list[Begun]] = {}
    for each in worker.arriving.values():
        found = Begun(each.place_there, each.request.tenant.tenant, waiting.share(each).received)
        begun.setdefault(each.request.traffic_class.name, []).append(found)
    return begun


def begins_now(place: tuple[float, int], sequence: Sequence) -> Begun:
    """One that is dealt to the worker: those that are dealt after it do not pass it."""
    return Begun(place, sequence.request.tenant.tenant, -math.inf)


def place_among(begun: Iterable[Begun], sequence: Sequence, served: float) -> tuple[float, int]:
    """The place of a sequence, whose tenant has been served so much, among the prompts of its class.

    By urgency among those of its own tenant, as among those of other classes. Of other tenants it passes those who have
    received as much, and comes behind the others, however early it arrived: it is only now its turn.
    """
    place = sequence.turn
    others = [each for each in begun if each.tenant != sequence.request.tenant.tenant]
    passed = [each.place for each in others if each.received >= served]
    if passed and (first := min(passed)) <= place:
        place = first[0], first[1] - 1
    before = [each.place for each in others if each.received < served]
    if before and (last := max(before)) >= place:
        place = last[0], last[1] + 1
    return place
