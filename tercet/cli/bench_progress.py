"""How a run of `tercet bench` goes on: a bar where somebody can see it, else a line every few seconds."""

from __future__ import annotations

from statistics import median

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from tercet.load.progress import Progress
from tercet.load.record import Sample
from tercet.load.summary import PointSummary
from tercet.load.workload import Workload

_LINE_S = 5.0


class ProgressLine:
    """A watcher of a run, as a scope. Writes to standard error."""

    def __init__(self, workload: Workload, console: Console | None = None) -> None:
        self._workload = workload
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: Bar | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[live]}"),
                console=self._console, transient=True,
            )  # fmt: skip
        self._task = None if self._bar is None else self._bar.add_task("", total=1.0, live="starting")
        self._name = ""
        self._shown_s = 0.0
        self._before = (0.0, 0)

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, point: int, offered_per_s: float | None) -> None:
        """Of the next point."""
        count = len(self._workload.rates)
        load = self._workload.arrivals if offered_per_s is None else f"{offered_per_s:g} requests/s"
        self._name = f"{point + 1}/{count}: {load}" if count > 1 else load
        self._shown_s, self._before = 0.0, (0.0, 0)
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, description=self._name, total=1.0, live="")

    def sample(self, sample: Sample, progress: Progress) -> None:
        """A second has passed."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._part(sample), live=self._live(sample, progress))
        elif sample.at_s - self._shown_s >= _LINE_S:
            self._shown_s = sample.at_s
            self._console.print(f"{self._name}, {sample.at_s:.0f} s: {self._live(sample, progress)}", soft_wrap=True)

    def end(self, summary: PointSummary) -> None:
        """The point is over."""
        if self._bar is None:
            self._console.print(
                f"{self._name}: over after {summary.duration_s:.1f} s, {summary.offered} requests", soft_wrap=True
            )

    def _part(self, sample: Sample) -> float:
        """Of the point that is over."""
        workload = self._workload
        by_count = sample.client.finished / workload.requests if workload.requests else 0.0
        by_time = sample.at_s / workload.duration_s if workload.duration_s else 0.0
        return min(1.0, max(by_count, by_time))

    def _live(self, sample: Sample, progress: Progress) -> str:
        client = sample.client
        words = [f"{client.sent} sent, {client.running} running, {client.finished} over"]
        if refused := progress.outcomes.get("refused"):
            words.append(f"{refused} refused")
        if failed := progress.outcomes.get("failed"):
            words.append(f"{failed} failed")
        passed_s, tokens = sample.at_s - self._before[0], progress.tokens - self._before[1]
        if passed_s > 0:
            words.append(f"{tokens / passed_s:,.0f} tokens/s")
        self._before = (sample.at_s, progress.tokens)
        if progress.ttft_ms:
            words.append(f"first token {median(progress.ttft_ms):,.0f} ms")
        return ", ".join(words)
