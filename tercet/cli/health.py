"""``tercet health``: what each process of a mesh says of its health, and why."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from tercet import setting_check
from tercet.cli.asking import run_async
from tercet.cli.finite import SECONDS, SOME_SECONDS
from tercet.cli.root import EXIT_REQUEST
from tercet.cli.settings import SettingsCommand, with_config
from tercet.config import CA_VARIABLE
from tercet.health import LIVE, NAMES, READY
from tercet.mesh_health import Report, Target, find_targets, look_at
from tercet.mesh_layout import SERVICES
from tercet.sections import MeshConfig
from tercet.tls.client import ClientTls
from tercet.tls.probe import probe_tls

# All serve, but something is missing or crowded.
EXIT_IMPAIRED = 3
_POLL_S = 0.5


def exit_code(reports: Sequence[Report], names: Sequence[str]) -> int:
    """0: all is well; 3: all serve, with less than they should; 1: somebody does not serve, or does not answer. If it
    is asked for some `names`, 0: they hold; else 1."""
    if not all(report.holds(names or (LIVE, READY)) for report in reports):
        return EXIT_REQUEST
    return 0 if names or all(report.holds(NAMES) for report in reports) else EXIT_IMPAIRED


async def look_until(
    config: MeshConfig,
    given: Sequence[Target],
    gateway_tls: ClientTls | None,
    names: Sequence[str],
    wait_s: float,
    timeout_s: float,
) -> list[Report]:
    """The reports of those that are `given`, else of all in the settings, once all serve or `wait_s` are over; of some
    `names`, once these hold."""
    give_up_at = time.monotonic() + wait_s
    while True:
        # Each time: a name of workers may have other addresses by now.
        targets = given or await find_targets(config, gateway_tls)
        reports = await look_at(targets, timeout_s, names)
        left_s = give_up_at - time.monotonic()
        if exit_code(reports, names) != EXIT_REQUEST or left_s <= 0:
            return reports
        await asyncio.sleep(min(_POLL_S, left_s))


def write_table(reports: Sequence[Report], names: Sequence[str]) -> None:
    """A line for each process, then one for each name that does not hold."""
    shown = names or NAMES
    rows: list[tuple[str, ...]] = [("service", "address", *shown)]
    rows += [(report.service, report.address, *(_state(report, name) for name in shown)) for report in reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for report in reports:
        who = f"{report.service} {report.address}"
        if report.problem:
            click.echo(f"{who}: {report.problem}")
        for name in shown:
            for reason in report.names.get(name, ()):
                click.echo(f"{who}: not {name}: {reason}")


def _state(report: Report, name: str) -> str:
    reasons = report.names.get(name)
    return "-" if reasons is None else "no" if reasons else "yes"


def write_json(reports: Sequence[Report], _: Sequence[str]) -> None:
    """An object a line, with all names that were asked for; the empty one is the process."""
    for report in reports:
        names = {name: {"serving": not reasons, "reason": "; ".join(reasons)} for name, reasons in report.names.items()}
        click.echo(
            json.dumps(
                {"service": report.service, "address": report.address, "names": names, "problem": report.problem}
            )
        )


_WRITERS = {"table": write_table, "json": write_json}


def _checked(_: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Raises click.BadParameter for what is no address in settings either."""
    for value in values:
        if (problem := setting_check.address(value)) is not None:
            raise click.BadParameter(problem, param=parameter)
    return values


@click.command(cls=SettingsCommand)
@click.option(
    "--address", "addresses", multiple=True, metavar="HOST:PORT", callback=_checked,
    help="Ask this one; repeatable. Default: gateway, scheduler and workers as the settings have them.",
)  # fmt: skip
@click.option(
    "--service", type=click.Choice(SERVICES), default="gateway", show_default=True,
    help="What runs at --address: by that its certificate is known.",
)  # fmt: skip
@click.option(
    "--name", "names", multiple=True, metavar="NAME",
    help="Ask for this name alone, as a probe does; repeatable. Then the exit code is 0 if it holds, else 1.",
)  # fmt: skip
@click.option(
    "--wait", type=SECONDS, default=0.0, metavar="SECONDS", help="For so long, ask again until all are live and ready."
)
@click.option(
    "--timeout", type=SOME_SECONDS, default=5.0, show_default=True, metavar="SECONDS", help="For each answer."
)
@click.option(
    "--format", type=click.Choice(list(_WRITERS)), default="table", show_default=True,
    help="json: one object for each process.",
)  # fmt: skip
@click.option(
    "--tls-ca", type=click.Path(path_type=Path), envvar=CA_VARIABLE, metavar="FILE",
    help=f"Talk TLS with gateways; their certificate is of this CA. Default: {CA_VARIABLE}, else by tls.certificate.",
)  # fmt: skip
@with_config(["tls"], omit=("tls.insecure_public_bind",))
def health(
    config: MeshConfig,
    addresses: tuple[str, ...],
    service: str,
    names: tuple[str, ...],
    wait: float,
    timeout: float,
    format: str,
    tls_ca: Path | None,
) -> None:
    """Ask the processes of a mesh for their health: live, ready, intact, has-room.

    The exit code is 0 if all is well, 3 if all are live and ready but something is missing or full, and 1 if one is not
    live, not ready, or does not answer. docs/health.md says what each name means.
    """
    gateway_tls = None if tls_ca is None else ClientTls.from_files(tls_ca)
    tls = gateway_tls if service == "gateway" and gateway_tls is not None else None
    if addresses and tls is None:
        tls = probe_tls(config.tls, service)
    given = [Target(service, address, tls) for address in addresses]
    reports = run_async(look_until(config, given, gateway_tls, names, wait, timeout))
    _WRITERS[format](reports, names)
    sys.exit(exit_code(reports, names))
