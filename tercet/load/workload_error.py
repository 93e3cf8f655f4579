"""What is wrong with a load that was asked for."""

from __future__ import annotations

from tercet.errors import LoadError


class WorkloadError(LoadError):
    """A load that cannot be; `field` is the name of what is wrong in tercet.load.workload.Workload."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def number(field: str, text: str, *, least: float = 0.0, most: float = 1e12) -> float:
    """Raises WorkloadError for what is no number of a range, which `nan` is never."""
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError(field, f"{text!r} is not a number") from None
    if not least <= value <= most:
        raise WorkloadError(field, f"{text} is not between {least:g} and {most:g}")
    return value


def whole(field: str, text: str, *, least: int = 0, most: int = 1 << 31) -> int:
    """Raises WorkloadError for what is no whole number of a range."""
    value = number(field, text, least=least, most=most)
    if value != int(value):
        raise WorkloadError(field, f"{text} is not a whole number")
    return int(value)
