"""``tercet demo``: the whole path once, from nothing to an answer and back to nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tercet.cli.asking import CONTROL_TIMEOUT_S, show_text
from tercet.cli.console import Output
from tercet.cli.root import EXIT_INTERRUPTED
from tercet.cli.settings import SettingsCommand, with_config
from tercet.cli.status_board import StatusBoard
from tercet.cli.up import stop_on_signals
from tercet.client import Answer, AsyncClient, ChatMessage, FleetInfo
from tercet.mesh_layout import SERVICES
from tercet.mesh_processes import MeshProcesses
from tercet.sections import LedgerSettings, MeshConfig, TenantsSettings
from tercet.tls.settings import TlsSettings

QUESTION = "What is the capital of France?"
_MAX_TOKENS = 64
_ANSWER_TIMEOUT_S = 120.0
_START_TIMEOUT_S = 300.0


@click.command(cls=SettingsCommand)
@click.option("--question", default=QUESTION, show_default=True, help="What to ask.")
@with_config(
    ["model", "worker", "log"], omit=["worker.host", "worker.port"]
)  # the demo picks free ports, so that it runs beside anything
def demo(config: MeshConfig, question: str) -> None:
    """Start gateway, scheduler and worker on free ports of this machine, ask one question, stop them."""
    console = Output()
    with tempfile.TemporaryDirectory(prefix="tercet-demo-") as folder:
        try:
            asyncio.run(run_demo(private(config), question, Path(folder), console))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("interrupted; all is stopped")
            sys.exit(EXIT_INTERRUPTED)


def private(config: MeshConfig) -> MeshConfig:
    """`config` on free ports of loopback, in plain text, for whoever asks, and nobody keeps books of it."""
    sections: dict[str, Any] = {
        name: dataclasses.replace(getattr(config, name), host="127.0.0.1", port=0) for name in SERVICES
    }
    sections.update(tenants=TenantsSettings(), ledger=LedgerSettings(database="none"), tls=TlsSettings())
    return dataclasses.replace(config, **sections)


async def run_demo(config: MeshConfig, question: str, log_dir: Path, console: Console) -> None:
    """Raises errors.StartupError or errors.RequestError."""
    console.print("starting three processes: a worker that loads the model, a scheduler, a gateway")
    # Text comes out as it is generated; an area that is redrawn below it would break its lines.
    with StatusBoard(console, in_place=False) as board:
        mesh = MeshProcesses(config, on_change=board.show, log_dir=log_dir, start_timeout_s=_START_TIMEOUT_S)
        stop_on_signals(mesh)
        async with mesh, AsyncClient(mesh.address) as client:
            model = await client.model(timeout_s=CONTROL_TIMEOUT_S)
            console.print(f"\n[bold]{question}[/]   ({model.name}, through {mesh.address})", soft_wrap=True)
            prompt = [ChatMessage("user", question)] if model.chat else question
            generation = client.generate(prompt, temperature=0.0, max_tokens=_MAX_TOKENS, timeout_s=_ANSWER_TIMEOUT_S)
            async with generation:
                answer = await generation.answer(show_text)
            show_text("\n\n")
            console.print(summary(answer, await client.fleet(timeout_s=CONTROL_TIMEOUT_S)), soft_wrap=True)
    console.print("all three are stopped; `tercet up` keeps them running")


def summary(answer: Answer, fleet: FleetInfo) -> str:
    """One line: tokens, time to first token, tokens/s after it, KV blocks used and freed."""
    usage, timings = answer.finished.usage, answer.finished.timings
    first_s = timings.time_to_first_token_seconds
    decode_s = timings.total_seconds - first_s
    rate = f"{(usage.completion_tokens - 1) / decode_s:.1f}" if usage.completion_tokens > 1 and decode_s > 0 else "-"
    in_use = sum(worker.blocks_used for worker in fleet.workers)
    total = sum(worker.blocks_total for worker in fleet.workers)
    known = usage.kv_blocks_used is not None
    held = f"{usage.kv_blocks_used} used, {usage.kv_blocks_freed} freed" if known else "how many is not known"
    return (
        f"{usage.completion_tokens} tokens · first token after {first_s * 1000:.0f} ms · {rate} tokens/s · "
        f"KV blocks: {held}, {in_use} of {total} in use now"
    )
