"""The picture that `tercet top` shows: from two looks at a mesh to lines of a terminal. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tercet.cli.top_rates import Moment, Rates
from tercet.cli.top_tables import TenantRow, class_table, tenant_rows, tenant_table
from tercet.cli.top_words import amount, duration, percent
from tercet.mesh_info import WorkerInfo
from tercet.traffic import CancelTraffic, ClassTraffic, ForecastQuality

_BAR = ("█", "▒", "·")
_ASCII_BAR = ("#", "+", ".")


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
        tenants = tenant_rows(self.moment, self.rates)
        notes = [line for each in classes if (line := _refusals(each, self.rates)) is not None]
        notes += [_forecast(each) for each in self.moment.traffic.forecasts if each.count]
        if cancels := [each for each in self.moment.traffic.cancels if each.freed.count]:
            notes.append(_cancels(cancels))
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
        yield class_table(shown, self.rates, width)
        yield from notes
        if tenants:
            yield Text()
            rows = _fitted(tenants, left, self.moment.traffic.tenants_omitted)
            yield tenant_table(rows, width, rates=self.rates is not None)


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
        *([f"{amount(fleet.requests_paused)} paused"] if fleet.requests_paused else []),
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
            table.add_row(worker.address, Text(worker.condition, style="red"), "")
            continue
        total = worker.blocks_total or 1
        used, cached = worker.blocks_used / total, worker.blocks_cached / total
        words = f"KV {percent(used)}, cached {percent(cached)}, {worker.sequences} seqs"
        if worker.swap_blocks_used:
            words += f", {worker.swap_blocks_used} swapped"
        if worker.condition:
            words += f", {worker.condition}"
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


def _cancels(cancels: Sequence[CancelTraffic]) -> Text:
    """How long blocks of cancelled requests took to be free, by origin, the most frequent first."""
    most = sorted(cancels, key=lambda each: each.freed.count, reverse=True)
    words = [
        f"{each.origin} {duration(each.freed.p50_s)}, p99 {duration(each.freed.p99_s)} ({amount(each.freed.count)})"
        for each in most
    ]
    return Text(f"cancel to free: {'; '.join(words)}", no_wrap=True, overflow="ellipsis")


def _fitted(tenants: list[TenantRow], lines: int | None, omitted: int) -> list[TenantRow]:
    """As many as there are lines for; the last one says how many more there are."""
    if lines is None or len(tenants) + bool(omitted) <= lines:
        shown = tenants
    else:
        shown = tenants[: lines - 1]
        omitted += len(tenants) - len(shown)
    return [*shown, TenantRow(f"and {omitted} more")] if omitted else shown
