"""What a request has to be to be of use: limits, and which of them one has missed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .workload_error import WorkloadError, number

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds; None is no limit. `ttft_s` and `e2e_s` count from when a request was due, `gap_s` is the mean between
    two tokens of one request, `largest_gap_s` the longest that its reader sees nothing."""

    ttft_s: float | None = None
    gap_s: float | None = None
    largest_gap_s: float | None = None
    e2e_s: float | None = None

    def missed(
        self, ttft_s: float | None, gap_s: float | None, largest_gap_s: float | None, e2e_s: float | None
    ) -> str:
        """The names of the limits that these are over, joined by ``+``; None is over none."""
        measured = {
            "ttft": (ttft_s, self.ttft_s),
            "gap": (gap_s, self.gap_s),
            "largest-gap": (largest_gap_s, self.largest_gap_s),
            "e2e": (e2e_s, self.e2e_s),
        }
        return "+".join(
            name
            for name, (seconds, limit) in measured.items()
            if seconds is not None and limit is not None and seconds > limit
        )


def slo_of(limits: Mapping[str, Slo], traffic_class: str) -> Slo:
    """That of a class, else that of all (the empty name), else none."""
    return limits.get(traffic_class) or limits.get("") or Slo()


def parse_slo(text: str) -> tuple[str, Slo]:
    """``[CLASS:]NAME=DURATION,...``, such as ``interactive:ttft=500ms,gap=100ms``: the class, empty for all, and its
    limits. Raises WorkloadError."""
    traffic_class, colon, rest = text.partition(":")
    if not colon:
        traffic_class, rest = "", text
    names = {"ttft": "ttft_s", "gap": "gap_s", "largest-gap": "largest_gap_s", "e2e": "e2e_s"}
    limits = {}
    for each in rest.split(","):
        name, _, duration = each.strip().partition("=")
        if name not in names:
            raise WorkloadError("slo", f"{each.strip()!r} is not NAME=DURATION with one of {', '.join(names)}")
        limits[names[name]] = parse_duration("slo", duration)
    return traffic_class, Slo(**limits)


def parse_duration(field: str, text: str) -> float:
    """Seconds of ``500ms``, ``2s`` or ``1min``. Raises WorkloadError."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _UNITS.get(text[len(digits) :])
    if unit is None:
        raise WorkloadError(field, f"{text!r} is not a duration such as 500ms or 2s")
    return number(field, digits, least=1e-6) * unit
