"""The file of a plan log: lines of JSON, each an object.

The first says what it is, the next hold the checkpoint, then comes a line for each round, and the last one counts them,
so that a file that was cut off is known for one. Knows nothing of how it is sent or stored.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from tercet import __version__
from tercet.errors import PlanFileError

from .checkpoint import Snapshot
from .round import KeptRound, Round, StepIds, decode_round, encode_round, seconds
from .values import lengths_in, whole_number

FORMAT = 1
# Most of a part, and how much of it is made at once: that takes a millisecond or two.
MAX_PART_BYTES = 256 << 10
SLICE_BYTES = 48 << 10
# Of a file that is none of ours a line may have no end.
_MAX_HEADER_BYTES = 64 << 10
_MAX_LINE_BYTES = 256 << 20
# Lengths in a file stand for so many numbers at most, added up, and so many more for each of its bytes: a prompt of a
# million tokens comes with kilobytes of plans.
_MAX_HIDDEN = 1 << 22
_MAX_HIDDEN_PER_BYTE = 1 << 10
# Objects in a line of the checkpoint.
_LINE_OBJECTS = 32

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


class PlanFile(NamedTuple):
    """What a file holds. `objects` is the checkpoint as `restore` takes it."""

    version: str
    # Seconds since 1970, and the same moment on the scheduler's clock.
    written_at: float
    clock: float
    objects: list[Any]
    rounds: list[Round]


def write_plan_file(start: Snapshot, rounds: list[KeptRound], clock: float, written_at: float) -> Iterator[bytes]:
    """The file in parts of at most MAX_PART_BYTES. `rounds` follow `start`; both stay as they are meanwhile."""
    part = bytearray()
    for line in _lines(start, rounds, clock, written_at):
        part += line.encode()
        if len(part) >= SLICE_BYTES:
            yield from _split(bytes(part))
            part.clear()
    yield from _split(bytes(part))


def _split(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), MAX_PART_BYTES):
        yield data[begin : begin + MAX_PART_BYTES]


def _lines(start: Snapshot, rounds: list[KeptRound], clock: float, written_at: float) -> Iterator[str]:
    header = {
        "tercet_plan_log": FORMAT,
        "version": __version__,
        "written": datetime.fromtimestamp(written_at, timezone.utc).isoformat(timespec="seconds"),
        "written_at": written_at,
        "clock": clock,
        "num_objects": len(start),
        "num_rounds": len(rounds),
    }
    yield _dumps(header) + "\n"
    objects = start.encoded()
    while batch := list(islice(objects, _LINE_OBJECTS)):
        yield _dumps({"objects": batch}) + "\n"
    last_ids: dict[int, array[int]] = {}
    for kept in rounds:
        yield _dumps(encode_round(kept, last_ids)) + "\n"
    yield _dumps({"end": len(rounds)}) + "\n"


def read_plan_file(file: BinaryIO) -> PlanFile:
    """Reads what `write_plan_file` wrote. Raises PlanFileError that names the line."""
    number = 1
    try:
        header = _header(file.readline(_MAX_HEADER_BYTES))
        objects: list[Any] = []
        rounds: list[Round] = []
        last_ids: dict[int, StepIds] = {}
        allowed = _MAX_HIDDEN
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            data = _object(line)
            allowed += len(line) * _MAX_HIDDEN_PER_BYTE - lengths_in(data)
            if allowed < 0:
                raise PlanFileError("lengths add up to more than a file of this size can have")
            if not rounds and isinstance(data.get("objects"), list):
                objects += data["objects"]
            elif "end" in data:
                if not data["end"] == len(rounds) == header["num_rounds"] or len(objects) != header["num_objects"]:
                    raise PlanFileError("lines are missing before the end")
                if file.read(1):
                    raise PlanFileError("something follows the end")
                return PlanFile(header["version"], header["written_at"], header["clock"], objects, rounds)
            elif len(rounds) == header["num_rounds"]:
                raise PlanFileError("there are more rounds than the header says")
            else:
                rounds.append(decode_round(data, last_ids))
        raise PlanFileError("the file is cut off: its end is missing")
    except PlanFileError as error:
        raise PlanFileError(f"line {number}: {error}") from error
    except RecursionError:
        raise PlanFileError(f"line {number}: the line is nested too deeply") from None


def _header(line: bytes) -> dict[str, Any]:
    try:
        data = _object(line)
    except PlanFileError:
        data = {}
    if "tercet_plan_log" not in data:
        raise PlanFileError("this is no file of tercet dump-plans")
    if data["tercet_plan_log"] != FORMAT:
        raise PlanFileError(f"the file has format {str(data['tercet_plan_log'])[:20]}, this version reads {FORMAT}")
    if not isinstance(data.get("version"), str):
        raise PlanFileError("the header has no version")
    for name in ("written_at", "clock"):
        seconds(data.get(name))
    for name in ("num_objects", "num_rounds"):
        whole_number(data.get(name))
    return data


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except RecursionError:
        raise PlanFileError("the line is nested too deeply") from None
    except ValueError:
        # Of a file that was cut off the last line has no end.
        problem = "is no JSON" if line.endswith(b"\n") else "is cut off"
        raise PlanFileError(f"the line {problem}") from None
    if not isinstance(data, dict):
        raise PlanFileError("the line is no JSON object")
    return data
