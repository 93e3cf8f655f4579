"""``tercet up``: the whole mesh in the foreground."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from tercet.cli.console import Output
from tercet.cli.finite import SOME_SECONDS
from tercet.cli.root import EXIT_REQUEST, EXIT_STARTUP
from tercet.cli.settings import SettingsCommand, with_config
from tercet.cli.status_board import StatusBoard
from tercet.ledger.place import ledger_place
from tercet.mesh_layout import SERVICES, check_ports, layout
from tercet.mesh_processes import MeshProcesses, ServiceFailedError
from tercet.public_bind import check_public_bind, is_public, open_doors
from tercet.sections import MeshConfig

# `up` itself tells all where the others are.
_LINKS = ("gateway.scheduler", "scheduler.workers", "scheduler.peers")


async def run_mesh(
    config: MeshConfig,
    num_workers: int,
    num_gateways: int,
    log_dir: Path | None,
    start_timeout_s: float,
    console: Console,
) -> int:
    """Runs a mesh until SIGINT, SIGTERM or SIGHUP (exit code 0), or until it cannot go on. The exit code.

    A second signal kills what has not stopped yet. Raises ConfigError for a port in use.
    """
    with StatusBoard(console, in_place=console.is_terminal and log_dir is not None) as board:
        mesh = MeshProcesses(
            config,
            on_change=board.show,
            num_workers=num_workers,
            num_gateways=num_gateways,
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
        )
        stop_on_signals(mesh)
        try:
            async with mesh:
                tls = " --tls-ca CA.pem" if config.tls.certificate else ""
                console.print(
                    f'ready: tercet generate --address {mesh.address}{tls} "Hello"  (Ctrl-C stops)', soft_wrap=True
                )
                failed = await mesh.failure()
        except asyncio.CancelledError:
            return 0
        except ServiceFailedError as error:
            failed = error.status
    return EXIT_STARTUP if failed.exit_code == EXIT_STARTUP else EXIT_REQUEST


def stop_on_signals(mesh: MeshProcesses) -> None:
    """The first SIGINT, SIGTERM or SIGHUP cancels the calling task, a later one kills the services."""
    task = asyncio.current_task()

    def on_signal() -> None:
        if mesh.stopping or task is None:
            mesh.kill()
        else:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


@click.command(cls=SettingsCommand)
@click.option(
    "--num-workers", type=click.IntRange(min=1, max=256), default=1, show_default=True, metavar="N",
    help="Workers, on the ports from --worker-port on. They divide cores and free memory; each has its own KV cache.",
)  # fmt: skip
@click.option(
    "--num-gateways", type=click.IntRange(min=1, max=64), default=1, show_default=True, metavar="N",
    help="Gateways that share --gateway-port: the kernel gives each connection to one of them.",
)  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="Show the services' log here instead of writing files.")
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the services' logs go. Default: a temporary folder, removed after a clean stop.",
)
@click.option(
    "--start-timeout", type=SOME_SECONDS, default=600.0, show_default=True, metavar="SECONDS",
    help="How long the services may take to become ready.",
)  # fmt: skip
@with_config(
    ["gateway", "scheduler", "worker", "model", "tenants", "ledger", "costs", "metrics", "tls", "traces", "log"],
    omit=_LINKS,
)
def up(
    config: MeshConfig,
    num_workers: int,
    num_gateways: int,
    verbose: bool,
    log_dir: Path | None,
    start_timeout: float,
) -> None:
    """Run gateway, scheduler and worker together, in the foreground.

    Ctrl-C stops all, the gateway first so that running requests can end. If one fails, it is named, the others are
    stopped, and the exit code is not 0; but while one of several workers or gateways lives, the mesh goes on. The
    addresses by which they find each other follow from their ports.
    """
    console = Output()
    members = layout(config, num_workers, num_gateways)
    # Before there is a folder of logs: nothing starts that could write one.
    check_ports(members)
    for name in SERVICES:
        check_public_bind(name, config)
        if is_public(host := getattr(config, name).host) and (missing := open_doors(name, config)):
            note = f"warning: {name} listens on {host} without {' and '.join(missing)}"
            console.print(note, soft_wrap=True)
    if members[0].http_url:
        console.print(f"openai: {members[0].http_url}", soft_wrap=True)
    if members[0].console_url:
        console.print(f"console: {members[0].console_url}", soft_wrap=True)
    if members[0].config.metrics.port:
        console.print(f"metrics: {', '.join(member.metrics_url for member in members)}", soft_wrap=True)
    ledger = ledger_place(config.ledger, os.environ)
    # A URL may hold a password.
    if ledger is not None and "://" not in ledger:
        console.print(f"ledger: {ledger}  (tercet usage adds it up)", soft_wrap=True)
    temporary = None if verbose or log_dir else Path(tempfile.mkdtemp(prefix="tercet-"))
    target = None if verbose else log_dir or temporary
    code = None
    try:
        if target is not None:
            target.mkdir(parents=True, exist_ok=True)
            console.print(f"logs: {target}/{{{','.join(member.name for member in members)}}}.log", soft_wrap=True)
        code = asyncio.run(run_mesh(config, num_workers, num_gateways, target, start_timeout, console))
    finally:
        # Logs of a failure are kept; a start that ended before any was written leaves nothing.
        if temporary is not None and (code == 0 or not any(temporary.iterdir())):
            shutil.rmtree(temporary, ignore_errors=True)
    sys.exit(code)
