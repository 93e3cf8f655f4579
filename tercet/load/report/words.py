"""Numbers and names as pages and tables show them. Pure."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from tercet.load.summary import PointSummary

NOTHING = "–"
_LONGEST = 60


def amount(number: float | None) -> str:
    """A count, or a rate to three digits."""
    if number is None or math.isnan(number):
        return NOTHING
    if number == 0 or float(number).is_integer() or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def milliseconds(number: float | None) -> str:
    """As ms, s or min, whichever reads well."""
    if number is None or math.isnan(number):
        return NOTHING
    if number < 10:
        return f"{number:.2g} ms"
    if number < 999.5:
        return f"{number:.0f} ms"
    seconds = number / 1e3
    return f"{seconds:.3g} s" if seconds < 119.5 else f"{seconds / 60:,.0f} min"


def seconds(number: float | None) -> str:
    """Likewise."""
    return milliseconds(None if number is None else number * 1e3)


def percent(number: float | None) -> str:
    """Of a share in percent."""
    if number is None or math.isnan(number):
        return NOTHING
    return f"{number:.0f} %" if number >= 99.95 or float(number).is_integer() else f"{number:.1f} %"


def money(number: float | None) -> str:
    """In whatever currency the price was given in."""
    if number is None or math.isnan(number):
        return NOTHING
    if number >= 1 or number <= 0:
        return f"{number:,.2f}"
    return f"{number:.{2 - math.floor(math.log10(number))}f}"


def signed(number: float, unit: str = "%") -> str:
    """A change."""
    if math.isinf(number):
        return f"{'+' if number > 0 else '-'}∞ {unit}"
    return f"{number:+.1f} {unit}"


def name(text: str, longest: int = _LONGEST) -> str:
    """A name that somebody else has chosen: nothing in it that a page or a terminal obeys, and not too long."""
    shown = "".join("�" if unicodedata.category(each)[0] == "C" else each for each in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def value(thing: Any) -> str:
    """Something of a description."""
    if thing is None:
        return NOTHING
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, float):
        return f"{thing:g}"
    if isinstance(thing, list | tuple):
        return ", ".join(map(value, thing)) or NOTHING
    return name(str(thing), 400) or NOTHING


def load_name(point: PointSummary) -> str:
    """What a point of the sweep is called."""
    return f"point {point.point}" if point.offered_per_s is None else f"{amount(point.offered_per_s)}/s"


def listed(names: list[str]) -> str:
    """One, two and three."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
