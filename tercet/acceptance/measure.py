"""What a line of a contract can be about: the measures by name. Data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

PERCENTILES = (50, 95, 99)


class Basis(Enum):
    """What is observed for a measure, and judged by."""

    LOAD = "load"  # the rows of a load
    OUTPUTS = "outputs"  # answers to single questions
    FAULTS = "faults"  # what is left after clients went away


class Group(Enum):
    """The parts of a contract."""

    WAIT = "user wait"
    SMOOTHNESS = "stream smoothness"
    CAPACITY = "capacity"
    OVERLOAD = "overload"
    OUTPUTS = "outputs"
    LEAKS = "nothing leaks"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Measure:
    """`is_least`: its limit is the least that is agreed, else the most. `limit` is that of lines that name none; None:
    they have to. `says` is for people, `unit` stands behind figures."""

    group: Group
    basis: Basis
    says: str
    unit: str
    is_least: bool = False
    limit: float | None = None


def _of_rows() -> dict[str, Measure]:
    """The percentiles of what a row has."""
    kinds = {
        "ttft": (Group.WAIT, "first token"),
        "e2e": (Group.WAIT, "whole request"),
        "gap": (Group.SMOOTHNESS, "mean gap of a request"),
        "largest_gap": (Group.SMOOTHNESS, "largest gap of a request"),
    }
    return {
        f"{kind}_p{percent}_ms": Measure(group, Basis.LOAD, f"{says}, P{percent}", "ms")
        for kind, (group, says) in kinds.items()
        for percent in PERCENTILES
    }


MEASURES: Mapping[str, Measure] = {
    **_of_rows(),
    "qualified_percent": Measure(Group.CAPACITY, Basis.LOAD, "requests that keep the SLO", "%", True),
    "failed_percent": Measure(Group.CAPACITY, Basis.LOAD, "requests that fail", "%", limit=0.0),
    "qualified_per_s": Measure(Group.CAPACITY, Basis.LOAD, "qualified requests a second", "/s", True),
    "held_rate": Measure(Group.CAPACITY, Basis.LOAD, "largest rate that holds", "/s", True),
    "goodput_percent": Measure(Group.OVERLOAD, Basis.LOAD, "qualified requests, of the most", "%", True),
    "accepted_kept_percent": Measure(Group.OVERLOAD, Basis.LOAD, "accepted requests that keep the SLO", "%", True),
    "untyped_refusals": Measure(Group.OVERLOAD, Basis.LOAD, "refusals without a reason or a time", "", limit=0.0),
    "refused_p99_ms": Measure(Group.OVERLOAD, Basis.LOAD, "refused within, P99", "ms"),
    "waiting_most": Measure(Group.OVERLOAD, Basis.LOAD, "most requests in the queue", ""),
    "cost_per_qualified": Measure(Group.COST, Basis.LOAD, "cost of a qualified request", ""),
    "wrong_references": Measure(Group.OUTPUTS, Basis.OUTPUTS, "outputs unlike those recorded", "", limit=0.0),
    "wrong_finish_reasons": Measure(Group.OUTPUTS, Basis.OUTPUTS, "wrong finish reasons", "", limit=0.0),
    "wrong_usage": Measure(Group.OUTPUTS, Basis.OUTPUTS, "wrong counts of tokens", "", limit=0.0),
    "changed_by_company": Measure(Group.OUTPUTS, Basis.OUTPUTS, "outputs that others change", "", limit=0.0),
    "changed_by_repeat": Measure(Group.OUTPUTS, Basis.OUTPUTS, "seeded outputs unlike the first", "", limit=0.0),
    "going_on_after_cancel": Measure(Group.OUTPUTS, Basis.OUTPUTS, "cancelled requests that go on", "", limit=0.0),
    "wrong_ends": Measure(Group.LEAKS, Basis.FAULTS, "wrong ends beside clients that went away", "", limit=0.0),
    "blocks_left": Measure(Group.LEAKS, Basis.FAULTS, "KV blocks that do not come back", "", limit=0.0),
    "requests_left": Measure(Group.LEAKS, Basis.FAULTS, "requests that do not end", "", limit=0.0),
    "freed_p99_ms": Measure(Group.LEAKS, Basis.FAULTS, "from cancel to free, P99", "ms", limit=1_000.0),
}
