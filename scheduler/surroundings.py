"""What is served before a newcomer of a class and tenant. Pure.

Inside its class that is what fairness says. Between classes a newcomer passes whatever is less urgent as soon as the
workers are full of that; who is more urgent, and who comes later and will be, passes it. Takes time for each class and
tenant that waits, not for each sequence: those of a class are taken to have come evenly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .fair_order import Ahead, work_ahead
from .tenant import NamedPlan
from .traffic_class import TrafficClass
from .waiting import ClassQueue, WaitingQueue


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What waits and is served before the newcomer, and what comes after it. Tokens are those of prompts."""

    sequences: float = 0.0
    tokens: float = 0.0
    # Of these the sequences of its class, and what is of its tenant in that.
    of_class: float = 0.0
    own_sequences: float = 0.0
    own_tokens: float = 0.0
    # What comes in a second and passes it, and how much of that at most.
    overtaking: float = 0.0
    overtaking_most: float = 0.0
    # What comes in a second.
    inflow: float = 0.0
    # The part of prompts that is in no prefix cache. Plans take room for the rest, too; steps are shorter for it.
    fresh: float = 1.0
    # Something is owed to the newcomer: it passes the prompts at hand of those to whom nothing is.
    owed_turn: bool = False
    # Nothing is, and one to whom something is waits, or is likely to come: a part of the places is kept for him, and a
    # step has at most half of the prompts at hand.
    paced: bool = False


def surroundings(
    queue: WaitingQueue,
    traffic_class: TrafficClass,
    tenant: NamedPlan,
    urgency: tuple[float, int],
    inflows: Mapping[str, float],
    own_inflow: float,
    seats: Mapping[str, int],
    now: float,
) -> Surroundings:
    """`inflows` are prompt tokens that arrive in a second, by class, `own_inflow` those of its tenant in its class.
    `seats`: of classes with a max_running, the sequences that may start before one of theirs ends."""
    ahead = work_ahead(queue, traffic_class, tenant, urgency)
    of_class = queue.classes.get(traffic_class.name)
    owed_turn = of_class is not None and _owed_turn(of_class, tenant)
    sequences = tokens = 0.0
    overtaking = max(0.0, inflows.get(traffic_class.name, 0.0) - own_inflow)
    most = _due_to_others(of_class, tenant, ahead)
    for name, other in queue.classes.items():
        if name == traffic_class.name:
            continue
        if traffic_class.ttft is not None and other.traffic_class.ttft is None:
            # However old, they get no more than their share where promises are at stake, and are passed on a worker.
            continue
        if other.waiting:
            part = _part_before(other, now + traffic_class.claim_s, now)
            # Those beyond the seats of their class take only places that their own give up.
            part = min(part, seats.get(name, other.num_sequences) / other.num_sequences)
            sequences += part * other.num_sequences
            tokens += part * other.num_tokens
        # Those that come so soon are more urgent, too.
        soon_s = traffic_class.claim_s - other.traffic_class.claim_s
        if soon_s > 0.0:
            overtaking += inflows.get(name, 0.0)
            most += inflows.get(name, 0.0) * soon_s
    return Surroundings(
        sequences=ahead.sequences + sequences,
        tokens=ahead.tokens + tokens,
        of_class=ahead.sequences,
        own_sequences=ahead.own_sequences,
        own_tokens=ahead.own_tokens,
        overtaking=overtaking,
        overtaking_most=most,
        inflow=sum(inflows.values()),
        owed_turn=owed_turn,
        paced=of_class is not None and not owed_turn and _owed_awaited(of_class, now),
    )


def _owed_turn(queue: ClassQueue, tenant: NamedPlan) -> bool:
    """Whether something is owed to a newcomer of that tenant."""
    line = queue.lines.get(tenant.tenant)
    return line is not None and line.share.served < (line.share.level if line.sequences else queue.level())


def _owed_awaited(queue: ClassQueue, now: float) -> bool:
    """Whether one to whom something is owed waits, or is likely to come."""
    return queue.awaits(now) or any(line.share.served < line.share.level for line in queue.waiting.values())


def _due_to_others(queue: ClassQueue | None, tenant: NamedPlan, ahead: Ahead) -> float:
    """Tokens that a class's other tenants may still be served before a newcomer of this one, if they ask for as many;
    `ahead` is that for which they, and it, have asked."""
    own = None if queue is None else queue.lines.get(tenant.tenant)
    if queue is None or own is None:
        return 0.0
    level = queue.level()
    begin = own.share.served if own.sequences else own.share.begin(level, queue.owed)
    mark = begin + ahead.own_tokens / own.share.weight
    due = 0.0
    for line in queue.lines.values():
        served = line.share.served if line.sequences else line.share.begin(level, queue.owed)
        if served < mark and line is not own:
            due += (mark - served) * line.share.weight
    return max(0.0, due + ahead.own_tokens - ahead.tokens)


def _part_before(queue: ClassQueue, moment: float, now: float) -> float:
    """Which part of what waits of a class is more urgent than that moment."""
    oldest = min(line.sequences[0].request.arrived_at for line in queue.waiting.values())
    urgent_if_before = moment - queue.traffic_class.claim_s
    if now <= oldest:
        return float(oldest < urgent_if_before)
    return min(1.0, max(0.0, (urgent_if_before - oldest) / (now - oldest)))
