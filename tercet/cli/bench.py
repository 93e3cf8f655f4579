"""``tercet bench``: load on a server of language models, and what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tercet.cli.asking import model_option, timeout_option
from tercet.cli.bench_progress import ProgressLine
from tercet.cli.bench_report import compare, report
from tercet.cli.bench_table import print_points
from tercet.cli.connection import connection_options
from tercet.cli.console import Output
from tercet.cli.root import EXIT_INTERRUPTED, EXIT_REQUEST, Failure
from tercet.cli.workload_flags import WORKLOAD_FLAGS, flag_of, to_workload
from tercet.client.connection import Connection
from tercet.errors import LoadError
from tercet.load.classes import check_used
from tercet.load.endpoint import Endpoint
from tercet.load.folder import SUMMARY, RunFolder
from tercet.load.summary import Summary
from tercet.load.workload import Workload
from tercet.load.workload_error import WorkloadError

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


_HOW = (
    click.option("--openai", default="", metavar="URL", help="An OpenAI-compatible server, instead of --address."),
    click.option(
        "--processes", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Of the client."
    ),
    click.option(
        "--connections", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N",
        help="Of each key over gRPC; gateways on one port share clients by them.",
    ),
    click.option(
        "--started-with", default="", metavar="TEXT",
        help="How the server was started, which no server says; kept with the run.",
    ),
    click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: bench- and the time."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
)  # fmt: skip


def _load_options(command: Command) -> Command:
    for flag in reversed([*WORKLOAD_FLAGS, *_HOW]):
        command = flag(command)
    return command


@click.group()
def bench() -> None:
    """Put load on a mesh, or any OpenAI-compatible server, and see what became of each request."""


@bench.command()
@connection_options
@model_option
@timeout_option
@_load_options
def run(
    connection: Connection, model: str, openai: str, processes: int, connections: int, started_with: str,
    out: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Send requests when they are due, and measure the answers.

    Each is sent at its moment, whatever became of those before, and its latencies count from there: a server that
    stands still is charged for all that were due meanwhile. The folder gets a line for each request, a line for each
    second, and the summary (docs/bench.md).
    """
    endpoint = Endpoint(
        address=connection.address,
        openai=checked_url(openai),
        api_key=connection.api_key,
        tls=connection.tls,
        model=model,
        connections=connections,
        started_with=started_with,
    )
    out = out or Path(time.strftime("bench-%Y%m%d-%H%M%S"))
    if (out / SUMMARY).exists():
        raise click.BadParameter(f"{out} has a run already", param_hint="--out")
    is_new = not out.exists()
    try:
        workload = to_workload(**options)
        check_used(workload)
        # What cannot be written is told before, not behind all the work.
        out.mkdir(parents=True, exist_ok=True)
        summary = _run(workload, endpoint, processes, out)
    except WorkloadError as error:
        raise click.BadParameter(error.problem, param_hint=flag_of(error.field)) from error
    except LoadError as error:
        raise Failure(str(error), EXIT_REQUEST) from error
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}", EXIT_REQUEST) from error
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                # Of a run that came to nothing. One that has files in it stays.
                out.rmdir()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(summary)))
    else:
        print_points(Output(), summary)
    click.echo(f"all of it is in {out}", err=True)
    if not any(point.outcomes[good] for point in summary.points for good in ("completed", "cancelled")):
        raise Failure("no request was answered", EXIT_REQUEST)


def _run(workload: Workload, endpoint: Endpoint, processes: int, out: Path) -> Summary:
    """Writes each point when it is over."""
    from tercet.load import runner

    folder, command = RunFolder(out), shown_command(sys.argv)

    def interrupted() -> str:
        if not folder.num_points:
            return "interrupted: nothing is written of a part"
        return f"interrupted: {out} has {folder.num_points} of {len(workload.rates)} points"

    with ProgressLine(workload) as watcher:
        work = runner.run(workload, endpoint, processes=processes, watcher=watcher, keep=folder.take, command=command)
        result = run_client(work, interrupted)
    folder.finish()
    return result.summary


def run_client(work: Coroutine[Any, Any, Value], interrupted: Callable[[], str]) -> Value:
    """What a client measures, in a process that has nothing else to do. Raises Failure with what is said of it when it
    is interrupted, by Ctrl-C or SIGTERM."""
    import uvloop

    from tercet.garbage import settle
    from tercet.open_files import allow_many

    allow_many()
    # What the collector does in between would be taken for the server's.
    settle()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        raise Failure(interrupted(), EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def shown_command(words: Sequence[str]) -> str:
    """A command line without the keys in it."""
    shown = ["tercet", *words[1:]]
    for index, word in enumerate(shown):
        if shown[index - 1] == "--api-key" and not word.startswith("@"):
            shown[index] = "..."
    hidden = (
        re.sub(r"(^--api-key=|\bkey=)(?!@)[^,]+", r"\1...", re.sub(r"(https?://)[^/@]*@", r"\1...@", word))
        for word in shown
    )
    return shlex.join(hidden)


def checked_url(url: str) -> str:
    """The URL of an OpenAI server, or nothing. Raises click.BadParameter."""
    if url and not re.match(r"https?://[^/\s]+", url):
        raise click.BadParameter(f"{url!r} is not a URL such as http://127.0.0.1:8000/v1", param_hint="--openai")
    return url


bench.add_command(report)
bench.add_command(compare)
