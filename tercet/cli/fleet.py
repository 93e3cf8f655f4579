"""``tercet fleet``: the state of a running mesh."""

from __future__ import annotations

import dataclasses
import json

import click

from tercet.cli.asking import CONTROL_TIMEOUT_S, run_async
from tercet.cli.connection import client_options
from tercet.client import AsyncClient, FleetInfo


async def look(client: AsyncClient) -> FleetInfo:
    """Raises errors.RequestError."""
    async with client:
        return await client.fleet(timeout_s=CONTROL_TIMEOUT_S)


def to_lines(state: FleetInfo) -> list[str]:
    """A line for the requests, two for each worker, a third for one with room for swapped sequences."""
    lines = [
        f"requests: {state.requests_waiting} waiting, {state.requests_running} running, "
        f"{state.requests_paused} paused, {state.requests_finished} finished; "
        f"{state.preemptions} preemptions, {state.swaps} by swap"
    ]
    for worker in state.workers:
        if not worker.live:
            lines.append(f"worker {worker.address}: {worker.condition}")
            continue
        lines.append(
            f"worker {worker.address}: {worker.model} on {worker.device}, {worker.sequences} sequences, "
            f"{worker.tokens} tokens in {worker.steps} steps{worker.condition and f', {worker.condition}'}"
        )
        lines.append(
            f"  KV blocks: {worker.blocks_used} used, {worker.blocks_cached} cached, {worker.blocks_free} free "
            f"of {worker.blocks_total}"
        )
        if worker.swap_blocks_total:
            lines.append(f"  swapped to host memory: {worker.swap_blocks_used} of {worker.swap_blocks_total} blocks")
    return lines


@click.command()
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fleet(client: AsyncClient, as_json: bool) -> None:
    """Show workers, KV blocks and requests of a running mesh."""
    state = run_async(look(client))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(state)))
        return
    for line in to_lines(state):
        click.echo(line)
