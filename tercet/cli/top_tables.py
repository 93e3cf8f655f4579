"""The tables of `tercet top`: a row for each class and each tenant, and what stands in which column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.table import Table
from rich.text import Text

from tercet.cli.top_rates import Flow, Moment, Rates
from tercet.cli.top_words import NOTHING, amount, duration, percent
from tercet.traffic import ClassTraffic, Counts, Kept, Load, TenantTraffic

# Narrower than that, columns that can be done without are left out.
WIDE = 110
# What is seen of a name at least.
MIN_NAME = 16

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Column(Generic[Row]):
    heading: str
    cell: Callable[[Row], str | Text]
    # Only where there is room for it.
    wide: bool = False
    # Only where there are rates; False: only where there are none.
    rate: bool | None = None


def _table(columns: Sequence[_Column[Row]], rows: Iterable[Row], width: int, *, rates: bool) -> Table:
    table = Table(box=None, padding=(0, 2 if width >= WIDE else 1, 0, 0), pad_edge=False, header_style="bold")
    used = [each for each in columns if (width >= WIDE or not each.wide) and each.rate in (None, rates)]
    for number, column in enumerate(used):
        # Names may be cut, numbers may not.
        table.add_column(
            column.heading,
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=None if number else max(MIN_NAME, width // 5),
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in used))
    return table


@dataclass(frozen=True, slots=True)
class _ClassRow:
    traffic: ClassTraffic
    flow: Flow | None

    @classmethod
    def of(cls, traffic: ClassTraffic, rates: Rates | None) -> _ClassRow:
        return cls(traffic, None if rates is None else rates.classes.get(traffic.name))

    def per_second(self, of: Callable[[Flow], float]) -> str:
        return NOTHING if self.flow is None else amount(of(self.flow))

    def quantile(self, seconds: float) -> str:
        return duration(seconds) if self.traffic.ttft.count else NOTHING


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant over all of its classes; with a name alone, what is said instead of one."""

    name: str
    loads: Sequence[Load] = ()
    counts: Sequence[Counts] = ()
    flows: Sequence[Flow] = ()
    blocks_total: int = 0

    def over(self, numbers: Iterable[float]) -> str:
        return amount(sum(numbers)) if self.loads else ""

    def per_second(self, of: Callable[[Flow], float]) -> str:
        if not self.flows:
            return NOTHING if self.loads else ""
        return amount(sum(map(of, self.flows)))

    def promise(self, of: Callable[[Counts], Kept]) -> str:
        return percent(sum(map(of, self.counts), Kept()).part) if self.counts else ""

    @property
    def kv(self) -> str:
        blocks = sum(load.kv_blocks for load in self.loads)
        return percent(blocks / self.blocks_total) if self.blocks_total else ""


def tenant_rows(moment: Moment, rates: Rates | None) -> list[TenantRow]:
    """One row each; none where nobody keeps tenants."""
    by_tenant: dict[str | None, list[TenantTraffic]] = {}
    for each in moment.traffic.tenants:
        by_tenant.setdefault(each.tenant, []).append(each)
    if by_tenant.keys() <= {""}:
        return []
    blocks = sum(worker.blocks_total for worker in moment.fleet.workers)
    return [
        TenantRow(
            name="(others)" if tenant is None else tenant or "(nobody)",
            loads=[each.load for each in parts],
            counts=[each.counts for each in parts],
            flows=[
                flow
                for each in parts
                if rates is not None and (flow := rates.tenants.get((tenant, each.traffic_class))) is not None
            ],
            blocks_total=blocks,
        )
        for tenant, parts in by_tenant.items()
    ]


def _judged(kept: Kept, percentile: float) -> Text:
    """Green if as many as promised."""
    if kept.part is None or not percentile:
        return Text(percent(kept.part))
    return Text(percent(kept.part), style="green" if kept.part * 100 >= percentile else "red")


_CLASS_COLUMNS: tuple[_Column[_ClassRow], ...] = (
    _Column("class", lambda row: row.traffic.name),
    _Column("wait", lambda row: amount(row.traffic.load.requests_waiting)),
    _Column("tokens", lambda row: amount(row.traffic.load.tokens_waiting), wide=True),
    _Column("oldest", lambda row: duration(row.traffic.load.oldest_s)),
    _Column("run", lambda row: amount(row.traffic.load.requests_running)),
    _Column("acc/s", lambda row: row.per_second(lambda flow: flow.accepted), wide=True, rate=True),
    _Column("tok/s", lambda row: row.per_second(lambda flow: flow.tokens), rate=True),
    _Column("served", lambda row: amount(row.traffic.counts.served), rate=False),
    _Column("TTFT p50", lambda row: row.quantile(row.traffic.ttft.p50_s)),
    _Column("p95", lambda row: row.quantile(row.traffic.ttft.p95_s)),
    _Column("target", lambda row: duration(row.traffic.targets.ttft_s or None), wide=True),
    _Column("kept", lambda row: _judged(row.traffic.recent.ttft, row.traffic.targets.ttft_percentile)),
    _Column("gap target", lambda row: duration(row.traffic.targets.gap_s or None), wide=True),
    _Column("gap kept", lambda row: _judged(row.traffic.recent.gap, row.traffic.targets.gap_percentile)),
    _Column("all kept", lambda row: percent(row.traffic.recent.request.part), wide=True),
    _Column("refused/s", lambda row: row.per_second(lambda flow: sum(flow.refused.values())), rate=True),
    _Column("refused", lambda row: amount(sum(row.traffic.counts.refused.values())), rate=False),
)

_TENANT_COLUMNS: tuple[_Column[TenantRow], ...] = (
    _Column("tenant", lambda row: row.name),
    _Column("wait", lambda row: row.over(load.requests_waiting for load in row.loads)),
    _Column("tokens", lambda row: row.over(load.tokens_waiting for load in row.loads), wide=True),
    _Column("run", lambda row: row.over(load.requests_running for load in row.loads)),
    _Column("KV", lambda row: row.kv),
    _Column("acc/s", lambda row: row.per_second(lambda flow: flow.accepted), rate=True),
    _Column("tok/s", lambda row: row.per_second(lambda flow: flow.tokens), rate=True),
    _Column("accepted", lambda row: row.over(counts.accepted for counts in row.counts), wide=True),
    _Column("TTFT kept", lambda row: row.promise(lambda counts: counts.promises.ttft)),
    _Column("all kept", lambda row: row.promise(lambda counts: counts.promises.request)),
    _Column("refused/s", lambda row: row.per_second(lambda flow: sum(flow.refused.values())), rate=True),
    _Column("refused", lambda row: row.over(sum(counts.refused.values()) for counts in row.counts), rate=False),
)


def class_table(classes: Iterable[ClassTraffic], rates: Rates | None, width: int) -> Table:
    """A heading, and a line for each class."""
    return _table(_CLASS_COLUMNS, [_ClassRow.of(each, rates) for each in classes], width, rates=rates is not None)


def tenant_table(rows: Iterable[TenantRow], width: int, *, rates: bool) -> Table:
    """A heading, and a line for each row."""
    return _table(_TENANT_COLUMNS, rows, width, rates=rates)
