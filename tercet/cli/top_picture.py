"""The picture that `tercet top` shows: from two looks at a mesh to lines of a terminal. Asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tercet.cli.top_rates import Flow, Moment, Rates
from tercet.cli.top_words import NOTHING, amount, duration, percent
from tercet.messages import WorkerInfo
from tercet.traffic import ClassTraffic, Counts, ForecastQuality, Load, Promise, TenantTraffic

# Narrower than that, columns that can be done without are left out.
WIDE = 110
# What is seen of a name at least.
MIN_NAME = 16
_BAR = ("█", "▒", "·")
_ASCII_BAR = ("#", "+", ".")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Picture:
    """What was seen of the mesh last; `rates` is None where there was only one look, `moment` where there was none."""

    address: str
    moment: Moment | None = None
    rates: Rates | None = None
    # Why there is nothing newer.
    problem: str = ""
    # Lines to be had; None: as many as it takes.
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self._parts(options.max_width, _ASCII_BAR if options.ascii_only else _BAR))

    def _parts(self, width: int, bar: Sequence[str]) -> Iterable[RenderableType]:
        yield _title(self)
        if self.moment is None:
            return
        yield _summary(self.moment, self.rates)
        workers, classes = self.moment.fleet.workers, self.moment.traffic.classes
        shown = [each for each in classes if each.name]
        tenants = _tenants(self.moment, self.rates)
        notes = [line for each in classes if (line := _refusals(each, self.rates)) is not None]
        notes += [_forecast(each) for each in self.moment.traffic.forecasts if each.count]
        # Title and summary, three gaps, two headings.
        left = None if self.height is None else self.height - 7 - len(shown) - len(notes)
        if left is None:
            num_workers = len(workers)
        else:
            num_workers = min(len(workers), max(1, left // 2 if tenants else left))
            left = max(1, left - num_workers)
        yield Text()
        yield _workers(workers, num_workers, width, bar)
        yield Text()
        with_rates = self.rates is not None
        yield _table(_CLASS_COLUMNS, [_ClassRow.of(each, self.rates) for each in shown], width, rates=with_rates)
        yield from notes
        if tenants:
            yield Text()
            rows = _fitted(tenants, left, self.moment.traffic.tenants_omitted)
            yield _table(_TENANT_COLUMNS, rows, width, rates=with_rates)


def _title(picture: Picture) -> Text:
    title = Text(f"tercet {picture.address}", style="bold", no_wrap=True, overflow="ellipsis")
    if picture.moment is not None:
        title.append(f"  up {duration(picture.moment.traffic.uptime_s)}", style="not bold")
    if picture.problem:
        title.append(f"  {picture.problem}", style="bold red")
    return title


def _summary(moment: Moment, rates: Rates | None) -> Text:
    fleet = moment.fleet
    live = sum(worker.live for worker in fleet.workers)
    words = [f"{live}/{len(fleet.workers)} workers"]
    if rates is not None:
        words += [f"{amount(rates.steps)} steps/s", f"{amount(rates.tokens)} tok/s"]
    words += [
        f"{amount(fleet.requests_running)} running",
        f"{amount(fleet.requests_waiting)} waiting",
        f"{amount(fleet.requests_finished)} ended",
        f"{amount(fleet.preemptions)} preempted",
    ]
    return Text(", ".join(words), no_wrap=True, overflow="ellipsis")


def _workers(workers: Sequence[WorkerInfo], shown: int, width: int, bar: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=width // 3)
    for _ in range(2):
        table.add_column(no_wrap=True, overflow="ellipsis")
    hidden = len(workers) - shown
    if hidden:
        # The line that says so takes one.
        hidden += 1
    for worker in workers[: len(workers) - hidden]:
        if not worker.live:
            table.add_row(worker.address, Text("not connected", style="red"), "")
            continue
        total = worker.blocks_total or 1
        used, cached = worker.blocks_used / total, worker.blocks_cached / total
        words = f"KV {percent(used)}, cached {percent(cached)}, {worker.sequences} seqs"
        if worker.swap_blocks_used:
            words += f", {worker.swap_blocks_used} swapped"
        if worker.draining:
            words += ", draining"
        table.add_row(worker.address, _bar(used, cached, width // 4, bar), words)
    if hidden:
        total = sum(worker.blocks_total for worker in workers) or 1
        used = sum(worker.blocks_used for worker in workers) / total
        cached = sum(worker.blocks_cached for worker in workers) / total
        words = f"KV {percent(used)}, cached {percent(cached)} of all {len(workers)}"
        table.add_row(f"and {hidden} more", _bar(used, cached, width // 4, bar), words)
    return table


def _bar(used: float, cached: float, width: int, marks: Sequence[str]) -> Text:
    num_used = round(used * width)
    num_cached = min(width - num_used, round(cached * width))
    bar = Text(marks[0] * num_used, style="red" if used > 0.95 else "green")
    bar.append(marks[1] * num_cached, style="blue")
    return bar.append(marks[2] * (width - num_used - num_cached), style="dim")


def _refusals(traffic: ClassTraffic, rates: Rates | None) -> Text | None:
    """What was refused of a class and why, the most frequent first."""
    flow = None if rates is None else rates.classes.get(traffic.name)
    refused = traffic.counts.refused if rates is None else {} if flow is None else flow.refused
    if not refused:
        return None
    unit = "" if rates is None else "/s"
    most = sorted(refused.items(), key=lambda item: item[1], reverse=True)
    reasons = ", ".join(f"{reason} {amount(number)}{unit}" for reason, number in most)
    return Text(f"refused {traffic.name or 'of no class'}: {reasons}", "yellow", no_wrap=True, overflow="ellipsis")


def _forecast(quality: ForecastQuality) -> Text:
    high = "high" if quality.median_bias > 0 else "low"
    words = f"forecast of TTFT: off by {quality.median_error * 100:.0f} %"
    words += f", {abs(quality.median_bias) * 100:.0f} % too {high} (medians of {quality.count})"
    if quality.tried:
        words += f"; of {quality.tried} to be refused and tried {quality.tried_in_time} in time"
    words += f"; {quality.model}"
    return Text(words, no_wrap=True, overflow="ellipsis")


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
class _TenantRow:
    """A tenant over all of its classes."""

    name: str
    loads: Sequence[Load] = ()
    counts: Sequence[Counts] = ()
    flows: Sequence[Flow] = ()
    blocks_total: int = 0

    def over(self, numbers: Iterable[float]) -> str:
        return amount(sum(numbers)) if self.loads else ""

    def promise(self, of: Callable[[Counts], Promise]) -> str:
        return percent(sum(map(of, self.counts), Promise()).part) if self.counts else ""

    @property
    def kv(self) -> str:
        blocks = sum(load.kv_blocks for load in self.loads)
        return percent(blocks / self.blocks_total) if self.blocks_total else ""


def _tenants(moment: Moment, rates: Rates | None) -> list[_TenantRow]:
    """One row each; none where nobody keeps tenants."""
    by_tenant: dict[str | None, list[TenantTraffic]] = {}
    for each in moment.traffic.tenants:
        by_tenant.setdefault(each.tenant, []).append(each)
    if by_tenant.keys() <= {""}:
        return []
    blocks = sum(worker.blocks_total for worker in moment.fleet.workers)
    return [
        _TenantRow(
            name="(gone)" if tenant is None else tenant or "(nobody)",
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


def _fitted(tenants: list[_TenantRow], lines: int | None, omitted: int) -> list[_TenantRow]:
    """As many as there are lines for; the last one says how many more there are."""
    if lines is None or len(tenants) + bool(omitted) <= lines:
        shown = tenants
    else:
        shown = tenants[: lines - 1]
        omitted += len(tenants) - len(shown)
    return [*shown, _TenantRow(f"and {omitted} more")] if omitted else shown


def _judged(promise: Promise, percentile: float) -> Text:
    """Green if as many as promised."""
    if promise.part is None or not percentile:
        return Text(NOTHING if promise.part is None else percent(promise.part))
    return Text(percent(promise.part), style="green" if promise.part * 100 >= percentile else "red")


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

_TENANT_COLUMNS: tuple[_Column[_TenantRow], ...] = (
    _Column("tenant", lambda row: row.name),
    _Column("wait", lambda row: row.over(load.requests_waiting for load in row.loads)),
    _Column("tokens", lambda row: row.over(load.tokens_waiting for load in row.loads), wide=True),
    _Column("run", lambda row: row.over(load.requests_running for load in row.loads)),
    _Column("KV", lambda row: row.kv),
    _Column("acc/s", lambda row: row.over(flow.accepted for flow in row.flows), rate=True),
    _Column("tok/s", lambda row: row.over(flow.tokens for flow in row.flows), rate=True),
    _Column("accepted", lambda row: row.over(counts.accepted for counts in row.counts), wide=True),
    _Column("TTFT kept", lambda row: row.promise(lambda counts: counts.promises.ttft)),
    _Column("all kept", lambda row: row.promise(lambda counts: counts.promises.request)),
    _Column("refused/s", lambda row: row.over(sum(flow.refused.values()) for flow in row.flows), rate=True),
    _Column("refused", lambda row: row.over(sum(counts.refused.values()) for counts in row.counts), rate=False),
)
