"""The names of a service's health as metrics."""

from __future__ import annotations

from tercet.health import Conditions

from .metric import Reading, gauge

HEALTH = gauge("tercet_health", "1 if what the name of the health service promises holds, 0 if not", "name")


def put_health(reading: Reading, conditions: Conditions) -> None:
    """All names but that of the process as a whole, which says what `live` says."""
    for name, reasons in conditions.items():
        if name:
            reading.put(HEALTH, not reasons, name)
