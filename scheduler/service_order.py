"""In which order one worker computes the prompts that it has. Pure; knows no steps."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from .sequence import Sequence
from .waiting import WaitingQueue
from .worker import Worker


class Begun(NamedTuple):
    """A prompt that has its place in that order, smaller first."""

    place: tuple[float, int]
    traffic_class: str
    tenant: str
    # What its tenant has received so far, for each unit of weight.
    received: float
    # Among its tenant's of the class.
    urgency: tuple[float, int]


def begun_there(worker: Worker, waiting: WaitingQueue) -> list[Begun]:
    """The prompts that a worker has begun."""
    return [
        _begun(each, each.place_there, waiting.share(each).received, each.urgency) for each in worker.arriving.values()
    ]


def begins_now(place: tuple[float, int], sequence: Sequence) -> Begun:
    """One that is dealt to the worker: those that are dealt after it do not pass it."""
    return _begun(sequence, place, -math.inf, (-math.inf, 0))


def place_among(begun: Collection[Begun], sequence: Sequence, served: float) -> tuple[float, int]:
    """The place of a sequence, whose tenant has been served so much, among those prompts.

    By its claim among those of its own tenant, as among those of other classes. Of other tenants of its class it passes
    those who have received as much, and comes behind the others, however early it arrived: it is only now its turn.
    Where it then is, it passes those of its own that are less urgent, as long as nobody else's is between.
    """
    place = sequence.turn
    tenant, traffic_class = sequence.request.tenant.tenant, sequence.request.traffic_class.name
    others = [each for each in begun if each.traffic_class == traffic_class and each.tenant != tenant]
    passed = [each.place for each in others if each.received >= served]
    if passed and (first := min(passed)) <= place:
        place = first[0], first[1] - 1
    before = [each.place for each in others if each.received < served]
    if before and (last := max(before)) >= place:
        place = last[0], last[1] + 1
    urgency = sequence.urgency
    mine = [each for each in begun if each.tenant == tenant and each.traffic_class == traffic_class]
    weaker = [each for each in mine if each.urgency > urgency and each.place < place]
    if weaker:
        last = max((each.place for each in begun if each.place < place and each not in weaker), default=(-math.inf, 0))
        passed = [each.place for each in weaker if each.place > last]
        if passed:
            first = min(passed)
            place = first[0], first[1] - 1
    return place


def _begun(sequence: Sequence, place: tuple[float, int], received: float, urgency: tuple[float, int]) -> Begun:
    request = sequence.request
    return Begun(place, request.traffic_class.name, request.tenant.tenant, received, urgency)
