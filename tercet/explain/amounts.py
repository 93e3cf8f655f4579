"""Numbers as people read them."""

from __future__ import annotations


def seconds_text(seconds: float) -> str:
    """With a unit, to two or three digits."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    if seconds >= 0.9995e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.0f} us"


def number(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
