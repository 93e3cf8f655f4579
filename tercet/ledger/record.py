"""A line of a journal: what is kept of a request, or of refusals, and a sum that tells whether it is whole.

Fields have their names, so that one version reads what another one left: what it does not know it leaves out.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

from .row import Cancellation, Outcome, RefusalKey, Refusals, Row, StageTimes

_ROW, _REFUSALS = "request", "refusals"
_ROW_FIELDS = tuple(item.name for item in dataclasses.fields(Row))
_ROW_DEFAULTS = {item.name: item.default for item in dataclasses.fields(Row)}
_CANCELLATION_FIELDS = tuple(item.name for item in dataclasses.fields(Cancellation))
_STAGE_FIELDS = frozenset(item.name for item in dataclasses.fields(StageTimes))
_KEY_FIELDS = frozenset(item.name for item in dataclasses.fields(RefusalKey))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def row_to_line(row: Row) -> bytes:
    """With its end of line."""
    # What is at its default goes without saying: most of an open row.
    values = {name: value for name in _ROW_FIELDS if (value := getattr(row, name)) != _ROW_DEFAULTS[name]}
    if "outcome" in values:
        values["outcome"] = row.outcome.value
    if "stages" in values:
        values["stages"] = {f"{name}_s": seconds for name, seconds in row.stages.items()}
    if "cancellations" in values:
        values["cancellations"] = [
            {name: getattr(each, name) for name in _CANCELLATION_FIELDS} for each in row.cancellations
        ]
    return _line(_ROW, values)


def refusals_to_line(refused: Refusals) -> bytes:
    """With its end of line."""
    return _line(
        _REFUSALS, {"key": dataclasses.asdict(refused.key), "count": refused.count, "request_id": refused.request_id}
    )


def from_line(line: bytes) -> Row | Refusals | None:
    """What a line without its end says; None if it is not whole, or says what this version does not know."""
    told, _, body = line.partition(b" ")
    try:
        if int(told, 16) != zlib.crc32(body):
            return None
        kind, values = json.loads(body)
        if kind == _ROW:
            return _row(values)
        if kind == _REFUSALS:
            return Refusals(RefusalKey(**_known(values["key"], _KEY_FIELDS)), values["count"], values["request_id"])
    except (ValueError, TypeError, KeyError):
        pass
    return None


def _line(kind: str, values: dict[str, Any]) -> bytes:
    body = _encode((kind, values)).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _row(values: dict[str, Any]) -> Row:
    fields = _known(values, _ROW_DEFAULTS.keys())
    if "outcome" in fields:
        fields["outcome"] = Outcome(fields["outcome"])
    if "stages" in fields:
        fields["stages"] = StageTimes(**_known(fields["stages"], _STAGE_FIELDS))
    cancellations = [_known(each, _CANCELLATION_FIELDS) for each in fields.pop("cancellations", ())]
    for each in cancellations:
        each["states"] = tuple(each.get("states", ()))
    return Row(**fields, cancellations=tuple(Cancellation(**each) for each in cancellations))


def _known(values: dict[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
