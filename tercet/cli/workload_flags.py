"""The flags that say what a server is asked: what, when, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from tercet.cli.finite import SECONDS, SOME_SECONDS, FiniteNumber, FiniteRange
from tercet.load.lengths import INPUTS, OUTPUTS
from tercet.load.principals import Principals, parse_classes, parse_priorities, parse_tenant
from tercet.load.slo import parse_slo
from tercet.load.workload import LEAST_RATE, MOST_RATE, SYNTHETIC, SharedPrefix, Workload
from tercet.load.workload_error import WorkloadError, number, whole

_DEFAULT_SECONDS = 30.0
_FORMS = "constant:N, uniform:A-B or lognormal:MEDIAN,SIGMA[,MOST]"
_COUNT = click.IntRange(0, 2**31)
_SOME = click.IntRange(1, 2**31)

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
    click.option("--requests", type=_SOME, metavar="N", help="So many at most, instead or as well."),
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
WORKLOAD_FLAGS = (*_WHAT, *_WHEN, *_WHO)


def to_workload(
    *, rates: str, duration: float | None, requests: int | None, trace: str, warm_up: float, patience: float,
    timeout: float | None, tenants: Sequence[str], classes: str | None, priorities: str | None,
    shared_prefix: str | None, slow_reader_ratio: str | None, slo: Sequence[str], **same: Any,
) -> Workload:  # fmt: skip
    """The workload of the flags; those of `same` are its fields. Raises WorkloadError."""
    if duration is None:
        duration = 0.0 if requests or trace else _DEFAULT_SECONDS
    slow: dict[str, Any] = {}
    if slow_reader_ratio is not None:
        part, colon, pace = slow_reader_ratio.partition(":")
        slow["slow_reader_ratio"] = number("slow_reader_ratio", part, most=1.0)
        if colon:
            slow["slow_reader_tokens_per_s"] = number("slow_reader_ratio", pace, least=1e-3)
    return Workload(
        rates=tuple(number("rates", each, least=LEAST_RATE, most=MOST_RATE) for each in rates.split(",")),
        duration_s=duration,
        requests=requests or 0,
        trace=trace,
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
