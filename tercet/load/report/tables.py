"""The tables of a report: heads and rows of texts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tercet.ledger.usage import Usage
from tercet.load.summary import Goodput, PointSummary

from . import words
from .charges import Charges
from .cost import PointCost

# Of groups, in the order of what they were offered.
_MAX_GROUPS = 20
_COSTS = ["cost", "per qualified request", "per 1,000 tokens"]
_FIGURES = [
    "offered", "requests", "accepted/s", "qualified/s", "qualified", "output tokens/s", "TTFT p50", "p95", "p99",
    "TPOT p50", "p95", "gap p99", "largest gap p99", "end to end p95", "refused", "failed", "cancelled",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row is its name. `note`: what is to be known to read it."""

    key: str
    caption: str
    note: str
    head: list[str]
    rows: list[list[str]]


def figures(points: Sequence[PointSummary]) -> Table:
    """A row for each load."""
    note = (
        "Latencies count from when a request was due. Qualified: completed with all that was promised. TPOT: of a "
        "request from its first token to its last, by the number of tokens behind the first."
    )
    return Table("figures", "Figures of each load", note, _FIGURES, [_figures_of(point) for point in points])


def _figures_of(point: PointSummary) -> list[str]:
    return [
        words.load_name(point),
        words.amount(point.offered),
        words.amount(point.accepted_per_s),
        words.amount(point.qualified_per_s),
        words.percent(100 * point.qualified / point.offered if point.offered else None),
        words.amount(point.accepted_tokens_per_s),
        *(_ms(point.ttft_ms, each) for each in ("p50", "p95", "p99")),
        *(_ms(point.tpot_ms, each) for each in ("p50", "p95")),
        _ms(point.gap_ms, "p99"),
        _ms(point.largest_gap_ms, "p99"),
        _ms(point.e2e_ms, "p95"),
        *(words.amount(point.outcomes.get(each, 0)) for each in ("refused", "failed", "cancelled")),
    ]


def groups(points: Sequence[PointSummary]) -> Iterator[Table]:
    """By class and by tenant, where there are several."""
    head = ["", "load", "offered", "accepted", "refused", "qualified", "qualified/s", "output tokens/s", "TTFT p95"]
    for key, title in (("by_class", "By traffic class"), ("by_tenant", "By tenant")):
        names: Mapping[str, int] = _offered([getattr(point, key) for point in points])
        if len(names) > 1:
            shown = sorted(names, key=lambda name: -names[name])[:_MAX_GROUPS]
            more = f"The {len(shown)} that asked for most, of {len(names)}." if len(names) > len(shown) else ""
            rows = [_group(name, point, getattr(point, key)[name]) for name in shown for point in points
                    if name in getattr(point, key)]  # fmt: skip
            yield Table(key.replace("_", "-"), title, more, head, rows)


def _group(name: str, point: PointSummary, each: Goodput) -> list[str]:
    counts = (each.offered, each.accepted, each.refused, each.qualified)
    return [
        words.name(name) or words.NOTHING,
        words.load_name(point),
        *map(words.amount, counts),
        words.amount(each.qualified_per_s),
        words.amount(each.qualified_tokens_per_s),
        _ms(each.ttft_ms, "p95"),
    ]


def reasons(points: Sequence[PointSummary]) -> Table | None:
    """What refused and failed requests were told; None if none was."""
    counted: dict[tuple[str, str], dict[int, int]] = {}
    for point in points:
        for kind, some in (("refused", point.refusals), ("failed", point.failures), ("missed", point.missed)):
            for reason, count in some.items():
                counted.setdefault((kind, reason), {})[point.point] = count
    if not counted:
        return None
    rows = [
        [
            f"{kind}: {words.name(reason) or words.NOTHING}",
            *(words.amount(each.get(point.point, 0)) for point in points),
        ]
        for (kind, reason), each in counted.items()
    ]
    note = "Refused and failed by the reason of the error; missed: completed, but not with all that was promised."
    return Table("reasons", "Requests by reason", note, ["", *map(words.load_name, points)], rows)


def cost(points: Sequence[PointSummary], each: Sequence[PointCost]) -> Table:
    """A row for each load."""
    rows = [
        [words.load_name(point), words.seconds(of.worker_s), words.money(of.cost), words.money(of.cost_per_qualified),
         words.money(of.cost_per_1000)]
        for point, of in zip(points, each, strict=True)
    ]  # fmt: skip
    note = "Time of all workers, busy or idle; failed, refused and repeated work is in it."
    return Table("cost", "Cost of each load", note, ["", "worker time", *_COSTS], rows)


def charged(charges: Charges) -> Table:
    """Total, by class and by tenant."""
    named = [("all", charges.total)]
    named += [(f"class {words.name(name)}", each) for name, each in sorted(charges.by_class.items())]
    by_cost = sorted(charges.by_tenant.items(), key=lambda item: (-item[1].cost, -item[1].gpu_s, item[0]))
    named += [(f"tenant {words.name(name) or words.NOTHING}", each) for name, each in by_cost[:_MAX_GROUPS]]
    note = (
        f"The ledger has {charges.total.requests:,} of the run's {charges.asked:,} requests with an id. Idle "
        "time is in no charge, and qualified are those that got what the mesh's classes promise."
    )
    head = ["", "requests", "qualified", "GPU time", *_COSTS]
    return Table("charges", "What requests were charged with", note, head, [_charge(*each) for each in named])


def _charge(name: str, each: Usage) -> list[str]:
    return [
        name, words.amount(each.requests), words.amount(each.qualified), words.seconds(each.gpu_s),
        words.money(each.cost), words.money(each.cost_per_qualified), words.money(each.cost_per_1000),
    ]  # fmt: skip


def _ms(spread: Any, name: str) -> str:
    return words.milliseconds(None if spread is None else getattr(spread, name))


def _offered(groups: Sequence[Mapping[str, Goodput]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in groups:
        for name, each in some.items():
            found[name] = found.get(name, 0) + each.offered
    return found
