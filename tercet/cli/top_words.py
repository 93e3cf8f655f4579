"""How `tercet top` writes numbers: short, and of much the same width."""

from __future__ import annotations

NOTHING = "-"


def amount(number: float) -> str:
    """A count or a rate."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    if number < 100_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < 100e6 else f"{number / 1e6:,.0f}M"


def duration(seconds: float | None) -> str:
    """A time."""
    if seconds is None:
        return NOTHING
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def percent(part: float | None) -> str:
    """A part of a whole. Only all is 100 %."""
    if part is None:
        return NOTHING
    if part >= 1:
        return "100 %"
    return f"{min(part * 100, 99.9):.1f} %" if part >= 0.995 else f"{part * 100:.0f} %"
