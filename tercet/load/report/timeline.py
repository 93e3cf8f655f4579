"""What the server and the client were doing, second by second, through all loads of a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tercet.load.folder import Run
from tercet.load.record import Sample
from tercet.load.use import gpus, host_cpu, kv_filled, kv_used

from . import words
from .chart import Chart, Line, Mark, Missing, averaged

_NOT_TOLD = "The server did not tell, or not to this client."
Reading = Callable[[Sample], float | None]


def timeline(run: Run) -> Iterator[Chart | Missing]:
    """Plots over time; loads follow one another."""
    clock = _Clock(run)
    yield _requests(run, clock)
    yield _memory(run, clock)
    yield _throughput(run, clock)
    yield _processors(run, clock)


@dataclass(frozen=True, slots=True)
class _Clock:
    """Seconds since the run began, and where each of several loads does."""

    run: Run

    def marks(self) -> list[Mark]:
        begins = list(self._begins().items())
        if len(begins) < 2:
            return []
        offered = {point.point: point.offered_per_s for point in self.run.summary.points}
        return [
            Mark("" if offered.get(point) is None else f"{words.amount(offered[point])}/s", at) for point, at in begins
        ]

    def line(self, label: str, reading: Reading) -> Line | None:
        begins = self._begins()
        read = ((begins[sample.point] + sample.at_s, reading(sample)) for sample in self.run.samples)
        points = [(at, value) for at, value in read if value is not None]
        return Line(label, averaged(points)) if points else None

    def _begins(self) -> dict[int, float]:
        ends: dict[int, float] = {}
        for sample in self.run.samples:
            ends[sample.point] = max(ends.get(sample.point, 0.0), sample.at_s)
        begins, at = {}, 0.0
        for point in sorted(ends):
            begins[point] = at
            at += ends[point]
        return begins


def _chart(
    clock: _Clock, key: str, title: str, sentence: str, y_label: str, lines: list[Line | None]
) -> Chart | Missing:
    there = [line for line in lines if line is not None]
    if not there:
        why = _NOT_TOLD if clock.run.samples else "The run has no samples."
        return Missing(key, title, why)
    return Chart(key, title, sentence, "seconds", y_label, there, clock.marks())


def _requests(run: Run, clock: _Clock) -> Chart | Missing:
    sentence = f"At most {words.amount(_most(run, _sent))} requests were on their way at a time"
    if (most := _most(run, _queued)) is not None:
        sentence += f", and at most {words.amount(most)} in the server's queue"
    lines = [
        clock.line("sent, not over", _sent),
        clock.line("running", _running),
        clock.line("in the queue", _queued),
    ]
    return _chart(clock, "requests", "Requests", f"{sentence}.", "requests", lines)


def _memory(run: Run, clock: _Clock) -> Chart | Missing:
    most = _most(run, kv_used)
    sentence = f"Requests held at most {words.percent(most)} of the KV blocks."
    lines = [clock.line("used", kv_used), clock.line("used and cached", kv_filled)]
    return _chart(clock, "kv", "KV cache", sentence, "blocks, %", lines)


def _throughput(run: Run, clock: _Clock) -> Chart | Missing:
    sentence = f"The server computed at most {words.amount(_most(run, _tokens))} tokens a second."
    return _chart(clock, "throughput", "Throughput", sentence, "tokens a second", [clock.line("tokens", _tokens)])


def _processors(run: Run, clock: _Clock) -> Chart | Missing:
    sentence = f"The client's busiest loop had {words.percent(_mean(run, _client))} of one processor"
    if (mean := _mean(run, host_cpu)) is not None:
        sentence += f", this host {words.percent(mean)} of all of its own"
    if (mean := _mean(run, gpus)) is not None:
        sentence += f", its GPUs were busy for {words.percent(mean)} of the time"
    lines = [
        clock.line("client, of one processor", _client),
        clock.line("this host", host_cpu),
        clock.line("GPUs", gpus),
    ]
    return _chart(clock, "processors", "Processors", f"{sentence}, on the mean.", "busy, %", lines)


def _sent(sample: Sample) -> float | None:
    return sample.client.running


def _running(sample: Sample) -> float | None:
    return None if sample.server is None else sample.server.running


def _queued(sample: Sample) -> float | None:
    return None if sample.server is None else sample.server.queued


def _tokens(sample: Sample) -> float | None:
    return None if sample.server is None else sample.server.tokens_per_s


def _client(sample: Sample) -> float | None:
    return 100 * sample.client.cpu_share


def _most(run: Run, reading: Reading) -> float | None:
    return max((value for sample in run.samples if (value := reading(sample)) is not None), default=None)


def _mean(run: Run, reading: Reading) -> float | None:
    known = [value for sample in run.samples if (value := reading(sample)) is not None]
    return sum(known) / len(known) if known else None
