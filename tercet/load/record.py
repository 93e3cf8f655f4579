"""What is kept of a run: a row for each request, a sample each second. As JSON, one a line.

Times are seconds since the start of the row's point of the sweep, durations of gaps milliseconds; None is what did not
happen or what nobody knows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from .json_data import NEGATIVE_TOO, RunFileError, parsed
from .plain_file import open_plain

# Completed: got all that it was to get. Refused: at the door. Cancelled: by the client, on purpose. Failed: the rest.
Outcome = Literal["completed", "refused", "cancelled", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "refused", "cancelled", "failed")

Line = TypeVar("Line")

# Of a file, in bytes: three million requests. Of a line: a sample of a thousand workers is a fifth of it.
_MOST_BYTES = 2 << 30
_MOST_OF_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One request."""

    # Index of the point in the sweep, and of the request in the point.
    point: int
    index: int
    request_id: str
    tenant: str
    traffic_class: str
    priority: int = field(metadata=NEGATIVE_TOO)
    prompt_tokens: int
    max_tokens: int
    # By the schedule; the rest by the client's clock.
    due_s: float
    sent_s: float | None
    first_s: float | None
    last_s: float | None
    end_s: float | None
    # One of OUTCOMES.
    outcome: str
    # The finish reason, the reason of the error, or empty.
    reason: str
    output_tokens: int
    # Between messages that brought tokens: what a reader sees stand still.
    gap_p50_ms: float | None
    gap_p95_ms: float | None
    gap_p99_ms: float | None
    largest_gap_ms: float | None
    retry_after_s: float | None
    # Of the prompt, found in a prefix cache.
    cached_tokens: int | None
    # Due while the run warmed up: in no figure.
    warm_up: bool
    # The client read slowly on purpose: its gaps are in no figure.
    slow_reader: bool
    # Completed, with all that was promised; and what of it was missed: "", "ttft", "gap", "ttft+gap", "deadline".
    qualified: bool
    missed: str
    # In the server's queue, as it says.
    queue_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientSample:
    """The client itself: requests that run, were sent, are over; by how much its loop was late at worst since the last
    sample; the part of one processor that its busiest loop had."""

    running: int
    sent: int
    finished: int
    loop_lag_ms: float
    cpu_share: float


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker; blocks of KV cache."""

    address: str
    live: bool
    sequences: int
    kv_used: int
    kv_cached: int
    kv_free: int
    # Since the last sample; None for the first one.
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What the server says of itself; blocks and tokens are those of all workers together."""

    queued: int
    running: int
    kv_used: int
    kv_cached: int
    kv_free: int
    tokens_per_s: float | None
    workers: tuple[WorkerSample, ...]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU of this host."""

    index: int
    # Part of the time in which a kernel ran.
    use: float | None
    power_w: float | None
    memory_bytes: int | None
    clock_mhz: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One second."""

    point: int
    at_s: float
    client: ClientSample
    # None: it does not say, or not to this client.
    server: ServerSample | None
    # Part of this host's processors that was busy since the last sample.
    host_cpu: float | None
    gpus: tuple[GpuSample, ...] = ()


def write_lines(path: Path, lines: Iterable[Row | Sample], *, behind: bool = False) -> None:
    """Instead of what the file has, or `behind` it. Raises OSError."""
    with path.open("a" if behind else "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(dataclasses.asdict(line), allow_nan=False, separators=(",", ":")) + "\n")


def read_rows(path: Path) -> Iterator[Row]:
    """Raises RunFileError, OSError."""
    return _read(path, Row)


def read_samples(path: Path) -> Iterator[Sample]:
    """Raises RunFileError, OSError."""
    return _read(path, Sample)


def _read(path: Path, kind: type[Line]) -> Iterator[Line]:
    number = 1
    with open_plain(path, _MOST_BYTES) as file:
        try:
            while line := file.readline(_MOST_OF_LINE):
                if len(line) == _MOST_OF_LINE:
                    raise RunFileError(f"it is longer than {_MOST_OF_LINE:,} bytes")
                yield parsed(kind, line)
                number += 1
        except RunFileError as error:
            raise RunFileError(f"{path}, line {number}: {error}") from None
