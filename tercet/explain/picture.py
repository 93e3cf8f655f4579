"""An explanation for people and for programs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from .amounts import seconds_text
from .details import details
from .explanation import Explanation
from .headline import headline

# Characters of the longest bar, by the width from which on there is room for it.
_BARS = ((110, 24), (0, 10))


def stage_table(explanation: Explanation, width: int) -> Table:
    """A line for each stage, with a bar, and one for each of its parts where it has several; for so many columns."""
    longest = next(bar for least, bar in _BARS if width >= least)
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("time", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    total = explanation.total_s or 1.0
    for stage in (each for each in explanation.stages if each.seconds):
        words = escape(stage.parts[0].words) if stage.parts else ""
        share = stage.seconds / total
        table.add_row(stage.name, seconds_text(stage.seconds), f"{share:.0%}", _bar(share, longest), words)
        if len(stage.parts) > 1:
            for part in stage.parts:
                share = part.seconds / total
                table.add_row(
                    f"  {part.kind.value}", seconds_text(part.seconds), "", _bar(share, longest), escape(part.words)
                )
    name = "total so far" if explanation.running else "total"
    table.add_row(name, seconds_text(explanation.total_s), "", "", "")
    return table


def detail_table(explanation: Explanation) -> Table:
    """Names and texts."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, text in details(explanation):
        table.add_row(name, escape(text))
    return table


def to_json(explanation: Explanation) -> dict[str, Any]:
    """All of it, with words for what is one of several."""
    return {
        "request_id": explanation.request_id,
        "headline": headline(explanation),
        "running": explanation.running,
        "total_s": explanation.total_s,
        "at_scheduler": explanation.at_scheduler,
        "stages": [_plain(stage) for stage in explanation.stages],
        "row": None if explanation.row is None else _plain(explanation.row),
        "stories": [_plain(story) for story in explanation.stories],
        "missing": list(explanation.missing),
    }


def _bar(share: float, longest: int) -> str:
    return "\N{FULL BLOCK}" * round(max(0.0, min(1.0, share)) * longest)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return dict(_fields(value))
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for item in dataclasses.fields(value):
        yield item.name, _plain(getattr(value, item.name))
