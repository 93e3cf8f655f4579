"""``tercet replay-plans``: a plan log run again, against workers that play their recorded part."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tercet import __version__
from tercet.cli.root import EXIT_REQUEST, EXIT_STARTUP, Failure
from tercet.cli.services import service_module
from tercet.errors import PlanFileError


def read(path: Path) -> Any:
    """The plan log in a file, or on standard input if that is ``-``. Raises Failure that says what is wrong with it."""
    read_plan_file = service_module("scheduler", "plan_log.plan_file").read_plan_file
    try:
        if str(path) == "-":
            return read_plan_file(sys.stdin.buffer)
        with open(path, "rb") as file:
            return read_plan_file(file)
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}", EXIT_STARTUP) from error
    except PlanFileError as error:
        raise Failure(f"{path}: {error}", EXIT_STARTUP) from error


def summary_lines(outcome: Any, file: Any) -> Iterator[str]:
    """What a replay found, for people."""
    if file.version != __version__:
        yield f"the file is of version {file.version}, this is {__version__}"
    yield (
        f"replayed {outcome.rounds:,} of {len(file.rounds):,} rounds over {outcome.seconds:.3f} s: "
        f"{outcome.events:,} events, {outcome.plans:,} plans, {outcome.commands:,} commands to workers"
    )
    if outcome.strange:
        first = outcome.first_strange
        yield f"{outcome.strange:,} reports answer nothing that was sent, first in round {first.round}: {first.problem}"
    difference = outcome.difference
    if difference is None:
        yield "every decision is the same"
        return
    yield f"the first difference, in round {difference.round} at {difference.now:.6f} s: {difference.problem}"
    if difference.recorded is not None:
        yield f"  recorded: {json.dumps(difference.recorded)}"
    if difference.made is not None:
        yield f"  made now: {json.dumps(difference.made)}"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--show", is_flag=True, help="List every round: what happened, and what was planned.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay_plans(file: Path, show: bool, as_json: bool) -> None:
    """Run the plan log in FILE (- for standard input) again, and compare every decision.

    The scheduler of this version starts from the checkpoint in the file and is given the recorded events at the
    recorded times; workers play their recorded part. Exits with 1 if it decides anything else, or if a worker reported
    what nobody had asked for; with 2 if FILE is no plan log.
    """
    if show and as_json:
        raise click.UsageError("--show is for people, --json is not: choose one")
    log = read(file)
    view = service_module("scheduler", "plan_log.view")

    def watch(played: Any) -> None:
        for line in view.round_lines(log, played):
            click.echo(line)

    try:
        outcome = service_module("scheduler", "plan_log.replay").replay(log, watch if show else None)
    except PlanFileError as error:
        raise Failure(f"{file}: {error}", EXIT_STARTUP) from error
    if as_json:
        facts = {"equal": outcome.equal, "version": log.version, "rounds_recorded": len(log.rounds)}
        click.echo(json.dumps({**facts, **dataclasses.asdict(outcome)}))
    else:
        for line in summary_lines(outcome, log):
            click.echo(line)
    if not outcome.equal:
        sys.exit(EXIT_REQUEST)
