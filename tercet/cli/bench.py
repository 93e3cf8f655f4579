"""``tercet bench``: load on a server of language models, and what became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
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
from tercet.cli.finite import SECONDS, SOME_SECONDS, FiniteNumber, FiniteRange
from tercet.cli.root import EXIT_INTERRUPTED, EXIT_REQUEST, Failure
from tercet.client.connection import Connection
from tercet.errors import LoadError
from tercet.load.endpoint import Endpoint
from tercet.load.folder import SUMMARY, Run, write_run
from tercet.load.lengths import INPUTS, OUTPUTS
from tercet.load.principals import Principals, parse_classes, parse_priorities, parse_tenant
from tercet.load.slo import parse_slo
from tercet.load.workload import SYNTHETIC, SharedPrefix, Workload
from tercet.load.workload_error import WorkloadError, number, whole

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")

_DEFAULT_SECONDS = 30.0
_FORMS = "constant:N, uniform:A-B or lognormal:MEDIAN,SIGMA[,MOST]"
_COUNT = click.IntRange(0, 2**31)

_WHAT = (
    click.option(
        "--input", default="medium", show_default=True, metavar="LENGTHS",
        help=f"Tokens of prompts: {', '.join(INPUTS)}, or {_FORMS}.",
    ),
    click.option(
        "--output", default="chat", show_default=True, metavar="LENGTHS",
        help=f"max_tokens of requests: {', '.join(OUTPUTS)}, or {_FORMS}.",
    ),
    click.option(
        "--prompts", default=SYNTHETIC, show_default=True, metavar="synthetic|FILE",
        help="Random tokens, pieces of a text, or the questions of a .json (ShareGPT) or .jsonl file.",
    ),
    click.option(
        "--shared-prefix", metavar="PART:TOKENS[:GROUPS]",
        help="This part of all prompts begins with one of GROUPS common texts.",
    ),
    click.option("--temperature", type=FiniteNumber(), default=0.0, metavar="X", help="Default: 0, which is greedy."),
    click.option("--ignore-eos", is_flag=True, help="Outputs are as long as --output says, whatever the model writes."),
)  # fmt: skip
_WHEN = (
    click.option(
        "--arrivals", default="poisson", show_default=True, metavar="KIND",
        help="constant, poisson, burst[:N], ramp, at-once, or closed:N, which are N clients that wait for answers.",
    ),
    click.option("--trace", default="", metavar="FILE", help="Arrivals and lengths of a CSV or JSON lines file."),
    click.option(
        "--rate", "rates", default="1", show_default=True, metavar="X[,X...]",
        help="Requests a second; several are measured one after the other. Of a trace: how many times faster.",
    ),
    click.option("--duration", type=SECONDS, metavar="SECONDS", help="How long requests are due. Default: 30."),
    click.option("--requests", type=_COUNT, default=0, metavar="N", help="So many at most, instead or as well."),
    click.option(
        "--warm-up", type=SECONDS, default=0.0, show_default=True, metavar="SECONDS",
        help="Of the duration: what is due by then is recorded, and in no figure.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Same seed, same requests."),
    click.option(
        "--max-concurrency", type=_COUNT, default=0, metavar="N", help="Requests at a time; others wait here."
    ),
    click.option(
        "--patience", type=SOME_SECONDS, default=60.0, show_default=True, metavar="SECONDS",
        help="What is not over so long after the last was due has failed.",
    ),
)  # fmt: skip
_WHO = (
    click.option(
        "--tenant", "tenants", multiple=True, metavar="NAME:KEY=VALUE,...",
        help="One who asks; repeatable. Keys: key (@FILE), weight, class, priority. Default: one without a name.",
    ),
    click.option("--classes", metavar="NAME[=WEIGHT],...", help="Traffic classes, drawn for each request."),
    click.option("--priorities", metavar="N[=WEIGHT],...", help="Priorities, drawn for each request."),
    click.option(
        "--cancel-ratio", type=FiniteRange(0, 1), default=0.0, metavar="X",
        help="Part of requests whose clients go away, a quarter of them before the first token.",
    ),
    click.option(
        "--slow-reader-ratio", metavar="X[:TOKENS/S]", help="Part of requests that are read slowly: 2 tokens a second."
    ),
    click.option(
        "--slo", multiple=True, metavar="[CLASS:]NAME=TIME,...",
        help="What a qualified request keeps: ttft, gap (mean), largest-gap, e2e; such as ttft=500ms,gap=100ms. "
        "Repeatable. Default: what the mesh's classes promise, where it tells.",
    ),
)  # fmt: skip
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
    for flag in reversed([*_WHAT, *_WHEN, *_WHO, *_HOW]):
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
        # What cannot be written is told before, not behind all the work.
        out.mkdir(parents=True, exist_ok=True)
        result = _run(workload, endpoint, processes)
        write_run(out, result)
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
        click.echo(json.dumps(dataclasses.asdict(result.summary)))
    else:
        print_points(Output(), result.summary)
    click.echo(f"all of it is in {out}", err=True)


def _run(workload: Workload, endpoint: Endpoint, processes: int) -> Run:
    from tercet.load import runner

    command = shown_command(sys.argv)
    with ProgressLine(workload) as watcher:
        work = runner.run(workload, endpoint, processes=processes, watcher=watcher, command=command)
        return run_client(work, "interrupted: nothing is written of a part")


def run_client(work: Coroutine[Any, Any, Value], interrupted: str) -> Value:
    """What a client measures, in a process that has nothing else to do. Raises Failure with what is said of it when it
    is interrupted."""
    import uvloop

    from tercet.garbage import settle
    from tercet.open_files import allow_many

    allow_many()
    # What the collector does in between would be taken for the server's.
    settle()
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        raise Failure(interrupted, EXIT_INTERRUPTED) from None


def to_workload(
    *, rates: str, duration: float | None, warm_up: float, patience: float, timeout: float | None,
    tenants: Sequence[str], classes: str | None, priorities: str | None, shared_prefix: str | None,
    slow_reader_ratio: str | None, slo: Sequence[str], **same: Any,
) -> Workload:  # fmt: skip
    """The workload of the flags; those of `same` are its fields. Raises WorkloadError."""
    if duration is None:
        duration = 0.0 if same["requests"] or same["trace"] else _DEFAULT_SECONDS
    slow: dict[str, Any] = {}
    if slow_reader_ratio is not None:
        part, colon, pace = slow_reader_ratio.partition(":")
        slow["slow_reader_ratio"] = number("slow_reader_ratio", part, most=1.0)
        if colon:
            slow["slow_reader_tokens_per_s"] = number("slow_reader_ratio", pace, least=1e-3)
    return Workload(
        rates=tuple(number("rates", each, least=1e-6) for each in rates.split(",")),
        duration_s=duration,
        warm_up_s=warm_up,
        patience_s=patience,
        timeout_s=timeout,
        principals=Principals(
            tuple(map(parse_tenant, tenants)),
            {} if classes is None else parse_classes(classes),
            {} if priorities is None else parse_priorities(priorities),
        ),
        shared_prefix=None if shared_prefix is None else _shared_prefix(shared_prefix),
        slo=dict(map(parse_slo, slo)),
        **slow,
        **same,
    )


def _shared_prefix(text: str) -> SharedPrefix:
    field = "shared_prefix"
    part, *rest = text.split(":")
    if len(rest) not in (1, 2):
        raise WorkloadError(field, f"{text!r} is not PART:TOKENS[:GROUPS]")
    counts = [whole(field, each, least=1) for each in rest]
    return SharedPrefix(number(field, part, most=1.0), *counts)


_FLAGS = {
    "duration_s": "--duration",
    "patience_s": "--patience",
    "rates": "--rate",
    "slow_reader_tokens_per_s": "--slow-reader-ratio",
    "tenants": "--tenant",
    "timeout_s": "--timeout",
    "warm_up_s": "--warm-up",
}


def flag_of(field: str) -> str:
    """The flag that a field of a workload comes from."""
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


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
