"""Whether a request is refused for what is expected of it. Pure.

Docs: docs/adr/0020-refused-for-a-forecast.md has why a class may save up misses, and who is never refused.
"""

from __future__ import annotations

from tercet import errors

from .calibration import Ratios
from .outlook import FirstToken, Regime
from .traffic_class import Target, TrafficClass

# A request that would miss its target more likely than not is refused, however many of its class have met theirs.
LEAST_CHANCE = 0.5
# Misses that a class may save up: what it promises is a share of requests, so that one that is sure to be in time lets
# another one be unsure. Of the misses that the promise allows that is one part; the other is for forecasts that err.
MOST_SPARE = 3.0
SPENT_PART = 0.5
# A deadline that only so few requests would meet cannot be met.
HOPELESS_CHANCE = 0.05
# Bounds of what is said about when to ask again.
SHORTEST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.05, 60.0


def chance_within(seconds: float, first_token: FirstToken, ratios: Ratios) -> float:
    """How likely the first token comes within that time; `ratios`: how such forecasts turned out."""
    return ratios.share_within(seconds / first_token.seconds)


def needed_chance(target: Target) -> float:
    """How likely a request of the class has to be in time, on average."""
    return 1.0 - SPENT_PART * (1.0 - target.percentile / 100)


def misses_deadline(
    first_token: FirstToken, ratios: Ratios, deadline_s: float | None
) -> errors.DeadlineUnreachableError | None:
    """What refuses a request whose deadline in `deadline_s` seconds cannot be met; None if it can."""
    # Where nothing is ahead there is only the forecast against it, and those that are refused never correct that.
    if deadline_s is None or first_token.regime is Regime.IDLE:
        return None
    if chance_within(deadline_s, first_token, ratios) >= HOPELESS_CHANCE:
        return None
    expected_s = first_token.seconds * ratios.quantile(0.5)
    return errors.DeadlineUnreachableError(
        f"the first token is forecast in {expected_s:.3g} s, the deadline is in {deadline_s:.3g} s",
        metadata={"forecast_ms": str(round(expected_s * 1e3)), "deadline_ms": str(round(deadline_s * 1e3))},
    )


def misses_target(
    first_token: FirstToken, ratios: Ratios, traffic_class: TrafficClass, spare: float
) -> errors.SloUnreachableError | None:
    """What refuses a request that may miss its class's target; None if nothing does. `spare` misses are saved up."""
    target = traffic_class.ttft
    # Nobody is refused where nothing is ahead: there is nothing to wait for.
    if target is None or first_token.regime is Regime.IDLE:
        return None
    # What cannot be in time even alone is not refused for that, but for having to wait as long again.
    limit_s = target.seconds if first_token.alone_s <= target.seconds else 2 * first_token.alone_s
    needed = needed_chance(target)
    chance = chance_within(limit_s, first_token, ratios)
    if chance >= needed or (chance >= LEAST_CHANCE and spare + chance - needed >= 0.0):
        return None
    expected_s = first_token.seconds * ratios.quantile(0.5)
    # What is ahead takes a second a second to pass; once it is gone, it does not get better.
    late = ratios.quantile(needed)
    retry_s = min(late * first_token.seconds - limit_s, late * (first_token.step_s + first_token.queue_s))
    return errors.SloUnreachableError(
        f"the first token is forecast in {expected_s:.3g} s; class {traffic_class.name} promises {target.seconds:g} s",
        metadata={
            "traffic_class": traffic_class.name,
            "forecast_ms": str(round(expected_s * 1e3)),
            "target_ms": str(round(target.seconds * 1e3)),
        },
        retry_after_s=min(max(retry_s, SHORTEST_RETRY_SECONDS), LONGEST_RETRY_SECONDS),
    )
