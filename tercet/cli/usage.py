"""``tercet usage``: what requests have used, as the ledger has it. Needs no running mesh."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import click
from rich.table import Table

from tercet.cli.console import Output
from tercet.cli.finite import FiniteRange
from tercet.cli.settings import LEDGER_OF_GATEWAY, SettingsCommand, with_config
from tercet.config import variable_of
from tercet.errors import LedgerError
from tercet.ledger.ledger import Ledger
from tercet.ledger.place import ledger_place
from tercet.ledger.row import Outcome
from tercet.ledger.usage import GROUPS, RATIOS, SUMS, Capacity, Usage, capacity
from tercet.ledger.usage import usage as read_usage
from tercet.sections import MeshConfig

_DATABASE = "ledger.database"
_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400}


def to_moment(text: str, clock: Callable[[], float] = time.time) -> float:
    """Seconds since the epoch: of an ISO date or time, in UTC unless it says where, or of an age such as 24h. Raises
    click.BadParameter for what is neither."""
    age = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    if age:
        return clock() - int(age[1]) * _UNITS_S[age[2]]
    try:
        # Python 3.10 does not read the Z.
        moment = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither a date, such as 2026-11-30 or 2026-11-30T18:00, nor an age, such as 24h"
        ) from None


def to_names(text: str) -> tuple[str, ...]:
    """Keys of GROUPS, separated by commas, each once. Raises click.BadParameter for others."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in GROUPS:
            raise click.BadParameter(f"there is no {name!r}; there are {', '.join(GROUPS)}")
    if len(set(names)) < len(names):
        raise click.BadParameter("names something twice")
    return names


@click.command(cls=SettingsCommand)
@click.option(
    "--since",
    default="30d",
    metavar="TIME",
    callback=lambda _ctx, _option, text: to_moment(text),
    help="From then on. Default: 30d, 30 days ago.",
)
@click.option(
    "--until",
    default="0m",
    metavar="TIME",
    callback=lambda _ctx, _option, text: to_moment(text),
    help="Before that time. Default: now.",
)
@click.option(
    "--by", default="tenant", metavar="A,B", callback=lambda _ctx, _option, text: to_names(text),
    help=f"What to tell apart, of {', '.join(GROUPS)}; empty: nothing. Default: tenant.",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="json: one object for each row.",
)  # fmt: skip
@click.option(
    "--workers", type=FiniteRange(0, min_open=True), metavar="N",
    help="So many workers were there all the time: say what of it was used, and what the rest costs. Of a table.",
)  # fmt: skip
@with_config(["ledger"], omit=LEDGER_OF_GATEWAY)
def usage(
    config: MeshConfig, since: float, until: float, by: tuple[str, ...], format: str, workers: float | None
) -> None:
    """Show what requests have used: tokens, GPU time, cost.

    Requests count for the time at which they arrived; days are those of UTC. What a crash left unknown counts as 0.
    Without --ledger-database it is the ledger that this user's meshes on this host share.
    """
    if workers is not None and format != "table":
        raise click.UsageError("--workers adds a line to the table; there is none with --format " + format)
    where = ledger_place(config.ledger, os.environ)
    if where is None:
        raise LedgerError(
            f"is none: give --ledger-database FILE, or {variable_of(_DATABASE)}, or set it in the TOML file"
        )
    ledger = Ledger(where, time.time)
    try:
        rows = read_usage(ledger, since, until, by)
    finally:
        ledger.close()
    _WRITERS[format](rows, by)
    if workers is not None:
        click.echo(capacity_line(capacity(rows, workers, max(0.0, until - since)), workers))


def capacity_line(found: Capacity, workers: float) -> str:
    """What became of the time of all workers."""
    who = "1 worker was" if workers == 1 else f"{workers:g} workers were"
    line = f"{who} there for {_amount(found.hours)} hours; steps took {_amount(found.used_hours)}"
    line += f", {found.share:.1%} of them"
    if found.idle_cost is None:
        return line
    line += f"; the rest costs {_amount(found.idle_cost)}"
    if found.cost_per_qualified is None:
        return line
    return f"{line}, and a qualified request {_amount(found.cost_per_qualified)} with it"


def write_table(rows: Sequence[Usage], by: Sequence[str]) -> None:
    """For people. Of what is 0 everywhere, and of what is told apart, there is no column."""
    told = _OUTCOMES if "outcome" in by else ()
    shown = [
        name for name in _COLUMNS if name not in told and (name in _ALWAYS or any(getattr(row, name) for row in rows))
    ]
    table = Table(*by, box=None, pad_edge=False)
    for name in shown:
        table.add_column(_COLUMNS[name], justify="right")
    for row in rows:
        table.add_row(*(value or "-" for value in row.group), *(_amount(getattr(row, name)) for name in shown))
    Output().print_whole(table)


def write_csv(rows: Sequence[Usage], by: Sequence[str]) -> None:
    """With a line of names first."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*by, *SUMS, *RATIOS])
    for row in rows:
        writer.writerow([*row.group, *(getattr(row, name) for name in (*SUMS, *RATIOS))])


def write_json(rows: Sequence[Usage], by: Sequence[str]) -> None:
    """An object a line."""
    for row in rows:
        sums = {name: getattr(row, name) for name in (*SUMS, *RATIOS)}
        group = dict(zip(by, row.group, strict=True))
        click.echo(json.dumps({**group, **sums}))


_WRITERS = {"table": write_table, "csv": write_csv, "json": write_json}
_COLUMNS = {
    "requests": "requests", "open": "open", "completed": "completed", "qualified": "qualified", "refused": "refused",
    "cancelled": "cancelled", "expired": "expired", "failed": "failed", "lost": "lost",
    "prompt_tokens": "prompt", "cached_tokens": "cached", "generated_tokens": "generated",
    "delivered_tokens": "delivered", "wasted_tokens": "wasted", "gpu_s": "GPU s", "cost": "cost",
    "cost_per_1000": "per 1,000", "cost_per_qualified": "per qualified",
}  # fmt: skip
_OUTCOMES = tuple(each.value for each in Outcome)
_ALWAYS = ("requests", "completed", "prompt_tokens", "delivered_tokens", "gpu_s")


def _amount(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}" if number < 1 else f"{number:,.2f}"
