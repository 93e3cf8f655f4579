"""``tercet gateway``, ``tercet scheduler``, ``tercet worker``: one service in this process."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import partial
from typing import Any, TextIO, cast

import click
import structlog

from tercet.cli.settings import SettingsCommand, with_config
from tercet.config import PROCESS_NAME_VARIABLE
from tercet.errors import ConfigError
from tercet.garbage import RARELY, SELDOM, USUAL, settle
from tercet.log_file import LogFile, log_path
from tercet.mesh_processes import die_with_parent
from tercet.open_files import allow_many
from tercet.public_bind import check_public_bind, is_public, open_doors
from tercet.sections import LogSettings, MeshConfig
from tercet.telemetry import configure_logging, dropped_line
from tercet.tracing.settings import CONTENT_KEYS

# For so long a gateway's other threads, such as the one that writes the ledger, keep the interpreter from the one that
# streams, after any of its calls to the system: usually that is 5 ms.
SWITCH_SECONDS = 0.0005

# What only gateways have.
_EDGE = ("tls.certificate", "tls.key")


def service_module(name: str, part: str = "server") -> Any:
    """A module of a service: the one place where this package meets them, and only the one asked for."""
    return importlib.import_module(f"{name}.{part}")


def run_service(name: str, config: MeshConfig) -> None:
    """Runs a service until SIGTERM or SIGINT. Raises errors.StartupError."""
    die_with_parent()
    # With several workers on one host, `tercet up` tells each its name.
    process = os.environ.get(PROCESS_NAME_VARIABLE, "")
    configure_logging(process or name, config.log.level, config.log.format, _log_file(config.log, process))
    allow_many()
    check_public_bind(name, config)
    host = getattr(config, name).host
    if is_public(host) and (missing := open_doors(name, config)):
        open_to_all = ["Inference", "Operations"] if "tenants.store" in missing else []
        structlog.get_logger().warning("listens_publicly", host=host, without=missing, open_to_all=open_to_all)
    serve = service_module(name).serve

    def ready(port: int) -> None:
        # The scheduler's plan log is 10^5 objects, and so is what a gateway has of two thousand requests: none of them
        # garbage, and a look at all of them takes 10 to 100 ms. Only errors over HTTP leave cycles in a gateway.
        settle({"gateway": RARELY, "scheduler": SELDOM}.get(name, USUAL))
        if name == "gateway":
            sys.setswitchinterval(SWITCH_SECONDS)
        structlog.get_logger().info("ready", port=port)

    try:
        import uvloop
    except ImportError as error:
        raise ConfigError("uvloop", "is not installed; run `make setup`") from error

    async def serve_to_the_end() -> None:
        try:
            await serve(config, ready)
        finally:
            # Whoever tells it twice to stop may do so when all is done but the process.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)

    uvloop.run(serve_to_the_end())


def _log_file(settings: LogSettings, process: str) -> TextIO | None:
    """What is written to instead of standard error, if anything is. Raises ConfigError."""
    if not settings.file:
        return None
    dropped = partial(dropped_line, settings.format)
    return cast(TextIO, LogFile(log_path(settings.file, process), settings.max_bytes, settings.backups, dropped))


@click.command(cls=SettingsCommand)
@with_config(["gateway", "model", "tenants", "ledger", "costs", "metrics", "tls", "traces", "log"])
def gateway(config: MeshConfig) -> None:
    """Run one gateway: the edge that clients talk to.

    It tokenizes, streams and enforces deadlines, and holds one stream to its scheduler.
    """
    run_service("gateway", config)


@click.command(cls=SettingsCommand)
@with_config(["scheduler", "metrics", "tls", "traces", "log"], omit=(*_EDGE, *CONTENT_KEYS))
def scheduler(config: MeshConfig) -> None:
    """Run one scheduler: order and time.

    It admits requests, plans steps, and holds one stream to each worker. It sees neither text nor tensors.
    """
    run_service("scheduler", config)


@click.command(cls=SettingsCommand)
@click.option("--dry-run", is_flag=True, help="Print how the memory would be spent, load nothing.")
@with_config(["worker", "model", "metrics", "tls", "traces", "log"], omit=(*_EDGE, *CONTENT_KEYS))
def worker(config: MeshConfig, dry_run: bool) -> None:
    """Run one worker: a device with a model.

    It runs plans step by step, and owns the KV cache.
    """
    if dry_run:
        for line in service_module("worker").budget_lines(config):
            click.echo(line)
        return
    run_service("worker", config)
