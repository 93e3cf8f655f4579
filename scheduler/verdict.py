"""Whether a request is refused for what is expected of it. Pure.

Docs: docs/adr/0020-refused-for-a-forecast.md has who is never refused, and why; promise.py how likely is likely enough.
"""

from __future__ import annotations

from tercet import errors
from tercet.retry import bounded_retry

from .calibration import Ratios
from .outlook import FirstToken, Regime
from .promise import needed_chance
from .traffic_class import TrafficClass

# A deadline that only so few requests would meet cannot be met.
HOPELESS_CHANCE = 0.05


def chance_within(seconds: float, first_token: FirstToken, ratios: Ratios) -> float:
    """How likely the first token comes within that time; `ratios`: how such forecasts turned out."""
    return ratios.share_within(seconds / first_token.seconds)


def misses_deadline(
    first_token: FirstToken, ratios: Ratios, deadline_s: float | None
) -> errors.DeadlineUnreachableError | None:
    """What refuses a request whose deadline in `deadline_s` seconds cannot be met; None if it can."""
    # Where nothing is ahead there is only the forecast against it, and those that are refused never correct that.
    if deadline_s is None or first_token.regime is Regime.IDLE:
        return None
    chance = chance_within(deadline_s, first_token, ratios)
    if chance >= HOPELESS_CHANCE:
        return None
    expected_s = first_token.seconds * ratios.quantile(0.5)
    return errors.DeadlineUnreachableError(
        f"the first token is forecast in {expected_s:.3g} s, by the deadline in {deadline_s:.3g} s with a chance of"
        f" {chance:.1%}",
        metadata={
            "forecast_ms": str(round(expected_s * 1e3)),
            "deadline_ms": str(round(deadline_s * 1e3)),
            "chance": f"{chance:.3f}",
        },
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
    needed = needed_chance(target, spare)
    chance = chance_within(limit_s, first_token, ratios)
    if chance >= needed:
        return None
    expected_s = first_token.seconds * ratios.quantile(0.5)
    # What is ahead takes a second a second to pass; once it is gone, it does not get better.
    late = ratios.quantile(needed)
    retry_s = min(late * first_token.seconds - limit_s, late * (first_token.step_s + first_token.queue_s))
    if first_token.place_s:
        # Room is made for whoever comes then as late as for this one. What helps is a place that is free.
        retry_s = first_token.place_s
    return errors.SloUnreachableError(
        f"the first token is forecast in {expected_s:.3g} s, within {limit_s:.3g} s with a chance of {chance:.1%} where"
        f" {needed:.1%} is needed; class {traffic_class.name} promises {target.seconds:g} s",
        metadata={
            "traffic_class": traffic_class.name,
            "forecast_ms": str(round(expected_s * 1e3)),
            "target_ms": str(round(target.seconds * 1e3)),
            "chance": f"{chance:.3f}",
            "needed_chance": f"{needed:.3f}",
        },
        retry_after_s=bounded_retry(retry_s),
    )
