"""Metrics by name, and what a service tells of them at one moment. Knows no Prometheus."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from .distribution import Distribution


class Kind(enum.Enum):
    """What a value means. Values are the words of Prometheus."""

    COUNTER = "counter"  # it grows from the start of the process on
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, named as it is scraped but for the _bucket, _sum and _count of a histogram. Units are in the name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def counter(name: str, text: str, *labels: str) -> Metric:
    """Something that only grows."""
    assert name.endswith("_total")
    return Metric(name, Kind.COUNTER, text, labels)


def gauge(name: str, text: str, *labels: str) -> Metric:
    """Something that is as it is now."""
    return Metric(name, Kind.GAUGE, text, labels)


def histogram(name: str, text: str, *labels: str) -> Metric:
    """How large something was, each time."""
    return Metric(name, Kind.HISTOGRAM, text, labels)


# A value, or a distribution, and the values of its labels.
Sample = tuple[tuple[str, ...], float | Distribution]


class Reading:
    """What a service tells at one moment. What goes on counting is copied as it is put in."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[Metric, list[Sample]] = {}

    def put(self, metric: Metric, value: float | Distribution, *labels: str) -> None:
        """One value of a metric, with those of its labels in their order; each combination once."""
        assert len(labels) == len(metric.labels), metric.name
        held = value.copy() if isinstance(value, Distribution) else value
        self._samples.setdefault(metric, []).append((labels, held))

    def samples(self, metric: Metric) -> Iterable[Sample]:
        """All that was put in of a metric."""
        return self._samples.get(metric, ())
