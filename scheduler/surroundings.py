"""What is served before a newcomer of a class and tenant. Pure.

Inside its class that is what fairness says. Between classes a newcomer passes whatever is less urgent as soon as the
workers are full of that; who is more urgent, and who comes later and will be, passes it. Takes time for each class and
tenant that waits, not for each sequence: those of a class are taken to have come evenly.
"""

from __future__ import annotations

from collections.abc import Mapping

from .fair_order import work_ahead
from .forecast import Surroundings
from .tenant import TenantPlan
from .traffic_class import TrafficClass
from .waiting import ClassQueue, WaitingQueue


def surroundings(
    queue: WaitingQueue, traffic_class: TrafficClass, tenant: TenantPlan, inflows: Mapping[str, float], now: float
) -> Surroundings:
    """`inflows` are prompt tokens that arrive in a second, by class."""
    ahead = work_ahead(queue, traffic_class, tenant)
    sequences = tokens = overtaking = most = 0.0
    for name, other in queue.classes.items():
        if name == traffic_class.name:
            continue
        part = _part_before(other, now + traffic_class.claim_s, now) if other.waiting else 0.0
        sequences += part * other.counts.sequences
        tokens += part * other.counts.tokens
        # Those that come so soon are more urgent, too.
        soon_s = traffic_class.claim_s - other.traffic_class.claim_s
        if soon_s > 0.0:
            overtaking += inflows.get(name, 0.0)
            most += inflows.get(name, 0.0) * soon_s
    return Surroundings(
        sequences=ahead.sequences + sequences,
        tokens=ahead.tokens + tokens,
        overtaking=overtaking,
        overtaking_most=most,
        inflow=sum(inflows.values()),
    )


def _part_before(queue: ClassQueue, moment: float, now: float) -> float:
    """Which part of what waits of a class is more urgent than that moment."""
    oldest = min(line.sequences[0].request.arrived_at for line in queue.waiting.values())
    urgent_if_before = moment - queue.traffic_class.claim_s
    if now <= oldest:
        return float(oldest < urgent_if_before)
    return min(1.0, max(0.0, (urgent_if_before - oldest) / (now - oldest)))
