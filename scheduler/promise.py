"""How a class's promise is kept over many requests, whatever forecasts do: by what came of those before. Pure.

What is promised is a share of requests. So each tenant has an account in each class: misses to spare, those by which
there were fewer than are aimed at; below 0 there were more. They are booked as likely when a request is let in, and as
what came of it at its first token. The more there are to spare, the less sure a newcomer has to be in time; the more
are owed, the surer. That holds the share of those in time where it is aimed at, however wrong the chances are, as long
as surer forecasts do come true more often.

Docs: docs/adr/0020-refused-for-a-forecast.md.
"""

from __future__ import annotations

import math

from .traffic_class import Target

# Of the misses that a promise allows, the part that is aimed at. The other is for what comes in waves: who waits at one
# moment is late together, and a promise is looked at over less than for ever.
AIMED_PART = 0.6
# With nothing to spare nor owed a request may be so much less sure than what is aimed at: most others are surer.
MARGIN = 5.0
# It may miss twice as likely with so many more to spare, and half as likely with so many more owed.
DOUBLED_BY = 8.0
# A request that is less likely in time is refused whatever there is to spare.
LEAST_CHANCE = 0.25
# What is owed at most: no wave of misses is held against those for long who come after it.
MOST_OWED = 40.0


def aim(target: Target) -> float:
    """The share of requests that is to be in time: a little more than the class promises."""
    return 1.0 - AIMED_PART * (1.0 - target.percentile / 100)


def needed_chance(target: Target, spare: float) -> float:
    """How likely the next request has to be in time, with so many misses to spare."""
    return max(LEAST_CHANCE, 1.0 - _likeliest_miss(target) * math.pow(2.0, spare / DOUBLED_BY))


def booked(target: Target, spare: float, met: float) -> float:
    """What is to spare after one more request that has met its target, or is likely to, by so much more than is aimed
    at."""
    most = DOUBLED_BY * max(0.0, math.log2((1.0 - LEAST_CHANCE) / _likeliest_miss(target)))
    return min(max(spare + met, -MOST_OWED), most)


def _likeliest_miss(target: Target) -> float:
    """Of one that is let in with nothing to spare nor owed."""
    return MARGIN * (1.0 - aim(target))
