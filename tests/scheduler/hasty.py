"""Classes and tenants for lives of a second: what takes minutes elsewhere happens in them, too."""

from __future__ import annotations

import random
from dataclasses import replace

from scheduler.tenant import NamedPlan
from scheduler.traffic_class import CLASSES, Target, TrafficClass

TENANTS = ("one", "two", "three")
# The one that may hold a part of the blocks only.
PARTIAL = "one"


def hasty_classes(rng: random.Random) -> list[TrafficClass]:
    """The usual classes with promises and patience of tenths of a second, and now and then with limits."""

    def hasty(usual: TrafficClass) -> TrafficClass:
        return replace(
            usual,
            patience_s=usual.patience_s and rng.choice([0.02, 0.1, 1.0]),
            ttft=usual.ttft and Target(rng.choice([0.01, 0.05, 0.2]) * (1 + usual.rank)),
            max_running=rng.choice([0, 0, 1, 2]),
            max_prefill_tokens=rng.choice([0, 0, 1, 5]),
            max_steps=rng.choice([0, 0, 1, 3]),
        )

    return [hasty(each) for each in CLASSES.values()]


def unequal_tenants(rng: random.Random) -> tuple[NamedPlan, ...]:
    """Tenants of different weights, one of which has a share of blocks."""
    return tuple(
        NamedPlan(name, weight=rng.choice([0.5, 1.0, 4.0]), kv_share=0.4 if name == PARTIAL else 0.0)
        for name in TENANTS
    )
