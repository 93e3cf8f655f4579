"""``tercet bench report`` and ``tercet bench compare``: what runs have recorded, for people and for programs."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from tercet.cli.console import Output
from tercet.cli.dump_plans import whole_file
from tercet.cli.finite import FiniteRange
from tercet.cli.root import EXIT_REQUEST, EXIT_STARTUP, Failure
from tercet.errors import LoadError

_FOLDER = click.Path(path_type=Path)
_STYLES = {"better": "green", "worse": "bold red", "unknown": "dim"}


@click.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option("--out", type=_FOLDER, metavar="FILE", help="Where the page goes. Default: report.html in DIR.")
@click.option("--png", type=_FOLDER, metavar="DIR", help="A folder for the plots as PNG, too.")
@click.option(
    "--gpu-hour-price",
    type=FiniteRange(0),
    metavar="X",
    help="Of an hour of a worker. Default: what --ledger has charged.",
)
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="So many there were. Default: those that the mesh tells of."
)
@click.option(
    "--ledger", metavar="FILE|URL",
    help="The mesh's ledger: what its requests were charged with, by class and tenant.",
)  # fmt: skip
def report(
    folder: Path,
    out: Path | None,
    png: Path | None,
    gpu_hour_price: float | None,
    workers: int | None,
    ledger: str | None,
) -> None:
    """Make a page of what `tercet bench run` wrote into DIR.

    It is one file of HTML with plots, tables and all that is known of the workload and the machine, and needs nothing
    from anywhere. With a price it has costs (docs/reports.md).
    """
    from tercet.load.folder import read_run
    from tercet.load.report import cost
    from tercet.load.report.charges import read_charges
    from tercet.load.report.page import page

    with _failures():
        run = read_run(folder)
        charges, hour = None, gpu_hour_price
        if ledger is not None:
            with _ledger(ledger) as opened:
                charges = read_charges(opened, run.rows, gpu_hour_price)
            hour = charges.hour if hour is None else hour
        costs: Sequence[cost.PointCost] = ()
        if hour is not None:
            costs = cost.costs(run, cost.Price(hour, workers or cost.workers_of(run)))
        text = page(run, costs, charges)
    out = out or folder / "report.html"
    with whole_file(out) as file:
        file.write(text.encode())
    if png is not None:
        _write_plots(run, png)
    click.echo(str(out))


@click.command()
@click.argument("folders", metavar="[A B]", nargs=-1, type=_FOLDER)
@click.option("--a", "a", multiple=True, type=_FOLDER, metavar="DIR", help="A run of A; repeatable.")
@click.option("--b", "b", multiple=True, type=_FOLDER, metavar="DIR", help="A run of B; repeatable.")
@click.option("--anyway", is_flag=True, help="Also if they were asked for different things.")
@click.option("--format", type=click.Choice(["table", "json", "html"]), default="table", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of what is drawn.")
@click.option("--fail-on-worse", is_flag=True, help="Exit with 1 if any figure is worse.")
def compare(
    folders: tuple[Path, ...], a: tuple[Path, ...], b: tuple[Path, ...], anyway: bool, format: str, seed: int,
    fail_on_worse: bool,
) -> None:  # fmt: skip
    """Tell what became better or worse from run A to run B, and what is noise.

    Each figure comes with the interval that holds its change with 95 %. Several runs a side (--a, --b) tell how much
    runs of the same thing differ, which one run cannot (docs/reports.md).
    """
    from tercet.load.folder import read_run
    from tercet.load.report import comparison_view
    from tercet.load.report.comparison import UnlikeRunsError, compare

    if folders and (len(folders) != 2 or a or b):
        raise click.UsageError("give two folders, A and B, or each run by --a and --b")
    sides = [[folders[0]], [folders[1]]] if folders else [list(a), list(b)]
    if not all(sides):
        raise click.UsageError("needs runs of both A and B")
    with _failures():
        runs = [[read_run(folder) for folder in side] for side in sides]
        try:
            found = compare(*runs, anyway=anyway, seed=seed)
        except UnlikeRunsError as error:
            raise LoadError(f"{error}; --anyway compares them all the same") from error
        names = [[str(folder) for folder in side] for side in sides]
        if format == "json":
            click.echo(json.dumps(comparison_view.to_data(found, *names)))
        elif format == "html":
            click.echo(comparison_view.page(found, *names), nl=False)
        else:
            _print_tables(found)
    if fail_on_worse and found.has("worse"):
        sys.exit(EXIT_REQUEST)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except LoadError as error:
        raise Failure(str(error), EXIT_STARTUP) from error


@contextlib.contextmanager
def _ledger(where: str) -> Iterator[Any]:
    from tercet.ledger.ledger import Ledger

    opened = Ledger(where, time.time)
    try:
        yield opened
    finally:
        opened.close()


def _write_plots(run: Any, folder: Path) -> None:
    from tercet.load.report.chart import Missing
    from tercet.load.report.charts import charts
    from tercet.load.report.drawing import to_png

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in charts(run):
            if not isinstance(plot, Missing):
                (folder / f"{plot.key}.png").write_bytes(to_png(plot))
    except OSError as error:
        raise Failure(f"cannot write {folder}: {error.strerror}", EXIT_REQUEST) from error


def _print_tables(found: Any) -> None:
    from rich.table import Table

    from tercet.load.report.comparison_view import tables

    console = Output()
    for warning in found.warnings:
        console.print(warning, markup=False, soft_wrap=True, style="yellow")
    for each in tables(found):
        console.print(each.caption, markup=False, soft_wrap=True, style="bold")
        shown = Table(box=None, pad_edge=False)
        for at, name in enumerate(each.head):
            shown.add_column(Text(name), justify="right" if at else "left")
        for row in each.rows:
            shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        console.print_whole(shown)
        if each.note:
            console.print(each.note, markup=False, soft_wrap=True, style="dim")
        console.print()
