"""From a service's event loop to Prometheus: one look at what it counts, taken in the loop, told in another thread.

The look is short and consistent, since nothing else runs in the loop meanwhile. All that takes longer, which is to make
text of it, is done where nobody waits for it. A loop that does not answer soon is told by its last look, and by how old
that is: then most of all somebody wants to know.
"""

from __future__ import annotations

import asyncio
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from tercet import __version__

from .distribution import Distribution
from .metric import Metric, Reading, Sample, gauge

# So long the loop may take to answer.
LIMIT_S = 1.0

BUILD_INFO = gauge("tercet_build_info", "1; which software runs", "service", "version", "python")
LOOP_DELAY = gauge(
    "tercet_event_loop_delay_seconds", "how long the service's event loop took to answer this scrape, 1 if longer"
)
AGE = gauge("tercet_metrics_age_seconds", "age of what is told; not 0 if the service's event loop did not answer")
# Every service has these.
COMMON = (BUILD_INFO, LOOP_DELAY, AGE)


@dataclass(frozen=True, slots=True)
class _Look:
    """A reading, when it was taken, and what the loop took to answer, in seconds."""

    reading: Reading
    taken_at: float
    delay_s: float
    age_s: float = 0.0


class LoopCollector(Collector):
    """Tells the metrics of one service, all those of `metrics` whether or not they have values. `look` is called in the
    running event loop; `clock` gives seconds."""

    def __init__(
        self,
        service: str,
        metrics: Sequence[Metric],
        look: Callable[[], Reading],
        *,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._look = look
        self._limit_s = limit_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._last = _Look(Reading(), clock(), 0.0)
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Family]:
        """For any thread but the loop's. Raises what a bug in the look raised."""
        look = self._ask()
        common = Reading()
        common.put(BUILD_INFO, 1, self._service, __version__, platform.python_version())
        common.put(LOOP_DELAY, look.delay_s)
        common.put(AGE, look.age_s)
        for metric in COMMON:
            yield family(metric, common.samples(metric))
        for metric in self._metrics:
            yield family(metric, look.reading.samples(metric))
            # Whoever serves comes first: this lets the interpreter go.
            time.sleep(0)

    def _ask(self) -> _Look:
        asked_at = self._clock()
        answer: futures.Future[_Look] = futures.Future()

        def take() -> None:
            now = self._clock()
            try:
                answer.set_result(_Look(self._look(), now, now - asked_at))
            except Exception as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(take)
            look = answer.result(self._limit_s)
        except (futures.TimeoutError, RuntimeError):
            # Slow, or closed: the process is about to end.
            last, now = self._last, self._clock()
            return _Look(last.reading, last.taken_at, now - asked_at, now - last.taken_at)
        with self._lock:
            if look.taken_at >= self._last.taken_at:
                self._last = look
        return look


def make_registry(service: str, metrics: Sequence[Metric], look: Callable[[], Reading]) -> CollectorRegistry:
    """All that a service's process tells, its memory, files and CPU time among it. For the running event loop."""
    registry = CollectorRegistry()
    registry.register(LoopCollector(service, metrics, look))
    ProcessCollector(registry=registry)
    return registry


def family(metric: Metric, samples: Iterable[Sample]) -> Family:
    """A metric with its values, as the library has it."""
    made = Family(metric.name.removesuffix("_total"), metric.help, metric.kind.value)
    for values, value in samples:
        labels = dict(zip(metric.labels, values, strict=True))
        if isinstance(value, Distribution):
            bounds = [*map("{:g}".format, value.bounds), "+Inf"]
            for bound, count in zip(bounds, value.cumulative(), strict=True):
                made.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
            made.add_sample(f"{metric.name}_count", labels, value.count)
            made.add_sample(f"{metric.name}_sum", labels, value.total)
        else:
            made.add_sample(metric.name, labels, value)
    return made
