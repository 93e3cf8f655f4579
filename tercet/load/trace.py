"""A file that says when requests came, and of what size: what was recorded once is asked again.

A line a request, as CSV with a head or as JSON objects. Times are seconds from any moment, or dates; the first one is
the start. Columns have Tercet's names, or those of two collections of public traces.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .workload_error import WorkloadError

_FIELD = "trace"


@dataclass(frozen=True, slots=True)
class Columns:
    """What a kind of file calls them. `tick_s` is what a number in `at` counts, in seconds."""

    at: str
    prompt_tokens: str
    max_tokens: str
    tick_s: float = 1.0


_KINDS = (
    Columns("at_s", "prompt_tokens", "max_tokens"),
    # Azure's LLM inference traces.
    Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # Mooncake's.
    Columns("timestamp", "input_length", "output_length", 1e-3),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request; `at` in seconds since the first. None is what the file does not say."""

    at: float
    prompt_tokens: int | None
    max_tokens: int | None
    tenant: str | None
    traffic_class: str | None
    priority: int | None


def read_trace(path: Path) -> tuple[Recorded, ...]:
    """In order of time. Raises WorkloadError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline()
            file.seek(0)
            lines = _json_lines(file) if first.lstrip().startswith("{") else iter(csv.DictReader(file))
            recorded = [_recorded(line, f"{path}, request {number}") for number, line in enumerate(lines, start=1)]
    except OSError as error:
        raise WorkloadError(_FIELD, f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(_FIELD, f"{path} is neither CSV nor JSON lines: {error}") from None
    if not recorded:
        raise WorkloadError(_FIELD, f"{path} has no requests")
    recorded.sort(key=lambda each: each.at)
    start = recorded[0].at
    return tuple(
        Recorded(each.at - start, each.prompt_tokens, each.max_tokens, each.tenant, each.traffic_class, each.priority)
        for each in recorded
    )


def _json_lines(file: Any) -> Iterator[Mapping[str, Any]]:
    for line in file:
        try:
            data = json.loads(line)
        except ValueError as error:
            raise WorkloadError(_FIELD, f"{line.strip()[:40]!r} is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise WorkloadError(_FIELD, f"{line.strip()[:40]!r} is not an object")
        yield data


def _recorded(line: Mapping[str, Any], where: str) -> Recorded:
    columns = next((each for each in _KINDS if line.get(each.at) not in (None, "")), None)
    if columns is None:
        raise WorkloadError(_FIELD, f"{where} has none of {', '.join(each.at for each in _KINDS)}")
    tenant, traffic_class = line.get("tenant"), line.get("traffic_class")
    return Recorded(
        at=_seconds(line[columns.at], columns.tick_s, where),
        prompt_tokens=_count(line.get(columns.prompt_tokens), where),
        max_tokens=_count(line.get(columns.max_tokens), where),
        tenant=None if tenant is None else str(tenant),
        traffic_class=None if traffic_class is None else str(traffic_class),
        priority=_integer(line.get("priority"), where),
    )


def _seconds(value: Any, tick_s: float, where: str) -> float:
    try:
        seconds = float(value) * tick_s
    except (TypeError, ValueError):
        return _date_s(value, where)
    if not math.isfinite(seconds):
        raise WorkloadError(_FIELD, f"{where}: {value!r} is no time")
    return seconds


def _date_s(value: Any, where: str) -> float:
    try:
        # Seven digits of a second are more than Python 3.10 reads.
        text = str(value).strip().replace(" ", "T")
        head, dot, tail = text.partition(".")
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        moment = datetime.fromisoformat((head + tail[len(digits) :]).replace("Z", "+00:00"))
    except ValueError:
        raise WorkloadError(_FIELD, f"{where}: {value!r} is no time") from None
    return moment.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)


def _count(value: Any, where: str) -> int | None:
    count = _integer(value, where)
    if count is not None and count < 0:
        raise WorkloadError(_FIELD, f"{where}: {count} tokens")
    # Traces have requests of nothing; none can be asked.
    return None if count is None else max(1, count)


def _integer(value: Any, where: str) -> int | None:
    if value in (None, ""):
        return None
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError(_FIELD, f"{where}: {value!r} is not a number") from None
