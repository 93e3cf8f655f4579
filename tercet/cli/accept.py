"""``tercet accept``: does a server do what was agreed?"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from tercet.acceptance import acceptance, written
from tercet.acceptance.acceptance import Judgement
from tercet.acceptance.judging import Judged, Verdict
from tercet.acceptance.measure import Group
from tercet.acceptance.spec import Spec
from tercet.acceptance.spec_file import read_spec
from tercet.cli.asking import model_option
from tercet.cli.bench import checked_url, run_client
from tercet.cli.bench_progress import ProgressLine
from tercet.cli.connection import connection_options
from tercet.cli.console import Output
from tercet.cli.root import EXIT_REQUEST, EXIT_STARTUP, Failure
from tercet.client.connection import Connection
from tercet.errors import LoadError
from tercet.load.endpoint import Endpoint
from tercet.load.workload import Workload

EXIT_FAILED, EXIT_NOT_MEASURED = EXIT_REQUEST, EXIT_STARTUP

_SHOWN = {
    Verdict.PASS: Text("PASS", "green"),
    Verdict.FAIL: Text("FAIL", "bold red"),
    Verdict.NOT_TOLD: Text("SKIP", "yellow"),
    Verdict.NOT_MEASURED: Text("SKIP", "bold yellow"),
}
_GROUPS = list(Group)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@connection_options
@model_option
@click.option("--spec", "path", type=_FILE, required=True, metavar="FILE", help="The contract, a TOML file.")
@click.option("--openai", default="", metavar="URL", help="An OpenAI-compatible server, instead of --address.")
@click.option(
    "--record", is_flag=True, help="Write what the server answers now to outputs.references, and check nothing."
)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Of the client."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="For the runs of loads. Default: accept- and the time.",
)
@click.option("--junit", type=_FILE, metavar="FILE", help="Write the lines as JUnit's XML, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as JSON.")
def accept(
    connection: Connection, model: str, path: Path, openai: str, record: bool, processes: int, out: Path | None,
    junit: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Check a server against a contract, line by line.

    Asks single questions, runs the loads that the contract names, and lets clients go away and read slowly; then says
    of each line whether it holds, with the figure (docs/accept.md). The server should have nothing else to do.

    Exits with 0 if no line fails, 1 if one does, 2 if something could not be measured.
    """
    spec = read_spec(path)
    endpoint = Endpoint(
        address=connection.address,
        openai=checked_url(openai),
        api_key=connection.api_key,
        tls=connection.tls,
        model=model,
    )
    if record:
        _record(spec, endpoint, path)
        return
    out = out or Path(time.strftime("accept-%Y%m%d-%H%M%S"))
    if out.exists() and any(out.iterdir()):
        raise click.BadParameter(f"{out} is not empty", param_hint="--out")
    with _files_written():
        # What cannot be written is told before, not behind all the work.
        if junit is not None:
            junit.touch()
        out.mkdir(parents=True, exist_ok=True)
        try:
            judgement = run_client(
                acceptance.accept(spec, endpoint, out, processes=processes, follower=_Progress()), _interrupted
            )
        finally:
            with contextlib.suppress(OSError):
                # Of a contract without loads. One that has files in it stays.
                out.rmdir()
        if junit is not None:
            junit.write_bytes(written.to_junit(path.stem, judgement))
    if as_json:
        click.echo(json.dumps(written.to_data(path.stem, judgement)))
    else:
        _print(Output(), judgement)
    verdicts = {each.verdict for each in judgement.judged}
    if Verdict.FAIL in verdicts:
        raise click.exceptions.Exit(EXIT_FAILED)
    if Verdict.NOT_MEASURED in verdicts:
        raise click.exceptions.Exit(EXIT_NOT_MEASURED)


def _interrupted() -> str:
    return "interrupted: nothing is said of a part"


def _record(spec: Spec, endpoint: Endpoint, path: Path) -> None:
    if not spec.outputs.references:
        raise click.BadParameter(f"{path} names no file in outputs.references", param_hint="--record")
    with _files_written():
        references = run_client(
            acceptance.record_references(spec, endpoint, Path(spec.outputs.references)), _interrupted
        )
    click.echo(f"{len(references.answers)} answers of {references.model} are in {spec.outputs.references}", err=True)


@contextlib.contextmanager
def _files_written() -> Iterator[None]:
    """Raises Failure for a server that cannot be measured, and for a file that cannot be read or written."""
    try:
        yield
    except LoadError as error:
        raise Failure(str(error), EXIT_NOT_MEASURED) from error
    except OSError as error:
        raise Failure(f"cannot write {error.filename}: {error.strerror}", EXIT_NOT_MEASURED) from error


class _Progress:
    """Says on standard error what is being done."""

    def begin(self, what: str) -> None:
        click.echo(f"{what} ...", err=True)

    def watch(self, workload: Workload) -> ProgressLine:
        return ProgressLine(workload)


def _print(console: Output, judgement: Judgement) -> None:
    table = Table("", "line", "figure", "agreed", "", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    group = None
    for each in sorted(judgement.judged, key=lambda each: _GROUPS.index(each.line.measure.group)):
        if each.line.measure.group is not group:
            group = each.line.measure.group
            table.add_row("", Text(group.value, "bold"))
        table.add_row(_SHOWN[each.verdict], Text(each.line.name), *map(Text, _cells(each)))
    console.print_whole(table)
    counts = {verdict: sum(each.verdict is verdict for each in judgement.judged) for verdict in Verdict}
    told = ", ".join(f"{count} {_COUNTED[verdict]}" for verdict, count in counts.items() if count)
    console.print(f"{judgement.model} of {judgement.server}: {told}", soft_wrap=True, markup=False)


_COUNTED = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.NOT_TOLD: "not told by the server",
    Verdict.NOT_MEASURED: "not measured",
}


def _cells(judged: Judged) -> tuple[str, str, str]:
    line = judged.line
    figure = "-" if judged.figure is None else line.shown(judged.figure)
    return figure, line.limited(), "; ".join(filter(None, (judged.detail, judged.where)))
