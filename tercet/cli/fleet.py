"""``tercet fleet``: the state of a running mesh."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table

from tercet.cli.asking import CONTROL_TIMEOUT_S, address_option, run_async
from tercet.client import Client, FleetInfo


async def look(address: str) -> FleetInfo:
    """Raises errors.RequestError."""
    async with Client(address) as client:
        return await client.fleet(timeout_s=CONTROL_TIMEOUT_S)


def to_table(state: FleetInfo) -> Table:
    """A row per worker."""
    table = Table(box=None, header_style="bold")
    for column in ("worker", "state", "model", "device", "sequences", "KV used", "cached", "free", "total", "tokens"):
        table.add_column(column, justify="left" if column in ("worker", "state", "model", "device") else "right")
    for worker in state.workers:
        counts = (worker.sequences, worker.blocks_used, worker.blocks_cached, worker.blocks_free, worker.blocks_total)
        live = "[green]live[/]" if worker.live else "[red]lost[/]"
        table.add_row(
            worker.address, live, worker.model or "-", worker.device or "-", *map(str, counts), str(worker.tokens)
        )
    return table


@click.command()
@address_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fleet(address: str, as_json: bool) -> None:
    """Show workers, KV blocks and requests of a running mesh."""
    state = run_async(look(address))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(state)))
        return
    console = Console(highlight=False)
    console.print(
        f"requests: {state.requests_waiting} waiting, {state.requests_running} running, "
        f"{state.requests_finished} finished; {state.preemptions} preemptions"
    )
    console.print(to_table(state))
