"""``tercet cancellations``: cancels and what became of them, from the ledger or from a running gateway."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from tercet.cancel_times import times_by_origin
from tercet.cli.asking import CONTROL_TIMEOUT_S, run_async
from tercet.cli.connection import client_options
from tercet.cli.console import Output
from tercet.cli.settings import LEDGER_OF_GATEWAY, SettingsCommand, with_config
from tercet.cli.usage import to_moment
from tercet.client import AsyncClient
from tercet.ledger.place import AUTO, ledger_place
from tercet.ledger.row import Cancelled
from tercet.sections import LedgerSettings, MeshConfig

_MOST = 1_000_000

Line = Mapping[str, Any]


@click.command(cls=SettingsCommand)
@click.option(
    "--since", default="30d", metavar="TIME", callback=lambda _ctx, _option, text: to_moment(text),
    help="From then on: a date, a time, or an age such as 24h. Default: 30d.",
)  # fmt: skip
@click.option("--origin", default="", metavar="NAME", help="Only those: client, deadline, operator, ...")
@click.option("--tenant", default="", metavar="NAME", help="Only this tenant's.")
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=None,
    help="At most so many, the newest first. Default: 100, with --summary all.",
)  # fmt: skip
@click.option("--summary", is_flag=True, help="How many there were, and how long they took, by origin.")
@click.option(
    "--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="json: one object for each row.",
)  # fmt: skip
@client_options
@with_config(["ledger"], omit=LEDGER_OF_GATEWAY)
def cancellations(
    config: MeshConfig,
    client: AsyncClient,
    since: float,
    origin: str,
    tenant: str,
    limit: int | None,
    summary: bool,
    format: str,
) -> None:
    """Show cancels: of which request, by whom, where it was, and how long until its blocks were free.

    All that the ledger has: by default that of this user's meshes on this host. If --address is given, or there is no
    ledger, what that gateway remembers.
    """
    limit = limit or (_MOST if summary else 100)
    where = _ledger_of(config.ledger)
    if where is not None:
        found = _of_ledger(where, since, origin, tenant, limit)
    else:
        told = run_async(_ask(client, origin, tenant, limit))
        found = [each for each in told if each.cancellation.cancelled_at >= since]
    if summary:
        lines: list[Line] = [dataclasses.asdict(each) for each in times_by_origin(found)]
    else:
        lines = [_line(each) for each in found]
    _WRITERS[format](lines)


def _ledger_of(settings: LedgerSettings) -> str | None:
    """The ledger to read; None if a gateway is to be asked. One that nobody has named gives way to a gateway that
    somebody has."""
    where = ledger_place(settings, os.environ)
    if where is None or settings.database != AUTO:
        return where
    source = click.get_current_context().get_parameter_source("address")
    return where if source is ParameterSource.DEFAULT and os.path.exists(where) else None


def _of_ledger(database: str, since: float, origin: str, tenant: str, limit: int) -> Sequence[Cancelled]:
    # Here, because SQLAlchemy takes long to import.
    from tercet.ledger.cancellations import read_cancellations
    from tercet.ledger.ledger import Ledger

    ledger = Ledger(database, time.time)
    try:
        return read_cancellations(ledger, since, time.time(), origin or None, tenant or None, limit)
    finally:
        ledger.close()


async def _ask(client: AsyncClient, origin: str, tenant: str, limit: int) -> Sequence[Cancelled]:
    async with client:
        return await client.cancellations(limit=limit, origin=origin, tenant=tenant, timeout_s=CONTROL_TIMEOUT_S)


def _line(cancelled: Cancelled) -> Line:
    cancel = cancelled.cancellation
    return {
        "cancelled_at": cancel.cancelled_at,
        "request_id": cancelled.request_id,
        "tenant": cancelled.tenant,
        "traffic_class": cancelled.traffic_class,
        "output_index": cancel.output_index,
        "origin": cancel.origin,
        "states": ",".join(cancel.states),
        "release_s": cancel.release_s,
        "freed_s": cancel.freed_s,
        "done_s": cancel.done_s,
        "blocks_freed": cancel.blocks_freed,
        "wasted_tokens": cancel.wasted_tokens,
        "wasted_gpu_s": cancel.wasted_gpu_s,
    }


def _write_table(lines: Sequence[Line]) -> None:
    """For people: durations in milliseconds."""
    if not lines:
        click.echo("none")
        return
    table = Table(box=None, pad_edge=False)
    for name in lines[0]:
        number = name.endswith("_s") or name in _NUMBERS
        table.add_column(_TITLES.get(name, name.removesuffix("_s") + " ms" * name.endswith("_s")),
                         justify="right" if number else "left")  # fmt: skip
    for line in lines:
        table.add_row(*(_cell(name, value) for name, value in line.items()))
    Output().print_whole(table)


def _cell(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if name == "cancelled_at":
        return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    if name.endswith("_s"):
        return f"{value * 1e3:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _write_csv(lines: Sequence[Line]) -> None:
    if lines:
        writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _write_json(lines: Sequence[Line]) -> None:
    for line in lines:
        click.echo(json.dumps(line))


_NUMBERS = frozenset({"output_index", "blocks_freed", "wasted_tokens", "count"})
_TITLES = {
    "cancelled_at": "when", "request_id": "request", "traffic_class": "class", "output_index": "output",
    "states": "state", "blocks_freed": "blocks", "wasted_tokens": "wasted", "wasted_gpu_s": "wasted GPU ms",
    "freed_p50_s": "freed p50 ms", "freed_p99_s": "p99", "freed_max_s": "max",
    "done_p50_s": "known p50 ms", "done_p99_s": "p99", "done_max_s": "max",
}  # fmt: skip
_WRITERS = {"table": _write_table, "csv": _write_csv, "json": _write_json}
