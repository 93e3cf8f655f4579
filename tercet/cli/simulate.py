"""``tercet simulate``: a question of capacity, answered by the real scheduler on a virtual clock."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from tercet.cli.finite import FiniteNumber
from tercet.cli.root import EXIT_INTERRUPTED, Failure
from tercet.cli.services import service_module

Command = TypeVar("Command", bound=Callable[..., Any])

# Per line of the table: the key of the report, and what to call it.
_SPREADS = (
    ("ttft_ms", "time to first token"),
    ("gap_ms", "between tokens"),
    ("queue_ms", "in the queue"),
    ("total_ms", "whole request"),
)

# Qualified: completed, and all that its class promises was kept; under load, until the last request had arrived.
_FLOW_COLUMNS = ("offered", "accepted", "completed", "qualified", "qual./s")

_FLAGS = (
    click.option("--workers", type=int, default=1, show_default=True, metavar="N", help="Simulated workers."),
    click.option("--requests", type=int, default=1000, show_default=True, metavar="N", help="Requests in all."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Same seed, same output."),
    click.option(
        "--rate",
        type=FiniteNumber(),
        metavar="X",
        help="Requests per second; 0: all at once. Default: 70 % of the estimate.",
    ),
    click.option(
        "--arrivals", default="poisson", show_default=True, metavar="KIND", help="poisson, constant or burst."
    ),
    click.option("--burst-size", type=int, default=50, show_default=True, metavar="N", help="Requests of a burst."),
    click.option(
        "--prompt-tokens",
        default="500",
        show_default=True,
        metavar="MEAN[:SIGMA[:MOST]]",
        help="Lengths of prompts; with SIGMA, log-normal.",
    ),
    click.option(
        "--output-tokens",
        default="150",
        show_default=True,
        metavar="MEAN[:SIGMA[:MOST]]",
        help="Lengths of outputs, which the scheduler does not know.",
    ),
    click.option(
        "--max-tokens", type=int, default=0, metavar="N", help="What clients ask for. Default: a bound of the outputs."
    ),
    click.option("--n", type=int, default=1, show_default=True, metavar="N", help="Outputs of a request."),
    click.option(
        "--shared-prefix",
        default="0",
        show_default=True,
        metavar="RATIO[:TOKENS[:COUNT]]",
        help="Requests that begin with one of COUNT common texts.",
    ),
    click.option(
        "--cancel-ratio",
        type=FiniteNumber(),
        default=0.0,
        show_default=True,
        metavar="X",
        help="Clients that go away early.",
    ),
    click.option(
        "--classes", default="interactive", show_default=True, metavar="NAME=WEIGHT,...", help="Traffic classes."
    ),
    click.option(
        "--flow",
        multiple=True,
        metavar="NAME:KEY=VALUE,...",
        help="Requests of one kind, instead of --classes; repeatable. Keys: class, tenant, share, prompt, output, "
        "max_tokens, n, priority, deadline, arrivals, burst, prefix, cancel; the rest is as the options above say.",
    ),
    click.option(
        "--tenant",
        multiple=True,
        metavar="NAME:KEY=VALUE,...",
        help="What a tenant of flows may do; repeatable. Keys: weight, requests_per_minute, tokens_per_minute, "
        "max_concurrent, kv_share, max_context, min_priority, classes (joined by +), default_class.",
    ),
    click.option(
        "--traffic-class",
        multiple=True,
        metavar="NAME:KEY=VALUE,...",
        help="Settings of a traffic class, as in [classes.NAME]; repeatable.",
    ),
    click.option("--block-size", type=int, default=64, show_default=True, metavar="N", help="Tokens per KV block."),
    click.option("--num-blocks", type=int, default=8192, show_default=True, metavar="N", help="Blocks of a worker."),
    click.option(
        "--swap-blocks", type=int, default=0, show_default=True, metavar="N", help="Blocks of its host memory."
    ),
    click.option(
        "--swap-block-us",
        type=FiniteNumber(),
        default=200.0,
        show_default=True,
        metavar="X",
        help="To move one, one way.",
    ),
    click.option("--max-num-seqs", type=int, default=256, show_default=True, metavar="N", help="Sequences in a step."),
    click.option(
        "--max-num-batched-tokens", type=int, default=8192, show_default=True, metavar="N", help="Tokens in a step."
    ),
    click.option("--max-model-len", type=int, default=32768, show_default=True, metavar="N", help="Longest sequence."),
    click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True, help="Prefix cache."),
    click.option(
        "--step-base-ms", type=FiniteNumber(), default=6.0, show_default=True, metavar="X", help="Of every step."
    ),
    click.option(
        "--step-token-us",
        type=FiniteNumber(),
        default=25.0,
        show_default=True,
        metavar="X",
        help="And for each token in it.",
    ),
    click.option(
        "--step-context-ns",
        type=FiniteNumber(),
        default=40.0,
        show_default=True,
        metavar="X",
        help="And for each token that its sequences have in the cache.",
    ),
    click.option(
        "--speed-spread",
        type=FiniteNumber(),
        default=0.0,
        show_default=True,
        metavar="X",
        help="Workers differ by 1 +- X.",
    ),
    click.option(
        "--message-delay-ms",
        type=FiniteNumber(),
        default=0.25,
        show_default=True,
        metavar="X",
        help="Scheduler to worker.",
    ),
    click.option(
        "--num-scheduler-steps", type=int, default=0, show_default=True, metavar="N", help="Fixed K; 0: adaptive."
    ),
    click.option(
        "--max-prefill-tokens", type=int, default=0, show_default=True, metavar="N", help="In a step with decodes."
    ),
    click.option(
        "--max-mixed-step-ms",
        type=FiniteNumber(),
        default=50.0,
        show_default=True,
        metavar="X",
        help="Such a step at most.",
    ),
    click.option("--max-queued-requests", type=int, default=1024, show_default=True, metavar="N", help="Queue bound."),
    click.option(
        "--max-queued-tokens", type=int, default=4_000_000, show_default=True, metavar="N", help="Queue bound."
    ),
    click.option(
        "--admission-mode", default="enforce", show_default=True, metavar="MODE", help="off, shadow or enforce."
    ),
)


def _study_options(command: Command) -> Command:
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def to_lines(report: Mapping[str, Any]) -> list[str]:
    """The report as a table."""
    requests = report["requests"]
    ends = [f"{requests['completed']} completed", f"{requests['cancelled']} cancelled"]
    for kind in ("failed", "refused"):
        ends += [f"{count} {kind} ({reason})" for reason, count in requests[kind].items()]
    offered = report["requests_per_second_offered"]
    lines = [
        f"requests         {', '.join(ends)}",
        *(f"                 {reason}, the first: {message}" for reason, message in report["problems"].items()),
        f"rate             {'all at once' if offered is None else f'{offered:.1f}/s'} offered, "
        f"{report['requests_per_second']:.1f}/s completed; estimated capacity "
        f"{report['requests_per_second_estimated']:.1f}/s",
        f"tokens           {report['tokens']} in {report['seconds']:.1f} s: {report['tokens_per_second']:.0f}/s",
        "",
        f"{'milliseconds':<22}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p95", "p99", "max")),
    ]
    rows = [(name, report[key]) for key, name in _SPREADS]
    if len(report["flows"]) > 1:
        rows[1:1] = [(f"  {name}", flow["ttft_ms"]) for name, flow in report["flows"].items()]
    lines += [f"{name:<22}" + "".join(f"{number:>10.1f}" for number in spread.values()) for name, spread in rows]
    kv_used, preemptions, swaps = report["kv_used_ratio"], report["preemptions"], report["swaps"]
    return [
        *lines,
        "",
        *_flow_lines(report["flows"]),
        f"workers          busy {report['worker_busy_ratio']:.1%}, KV blocks in use {kv_used['mean']:.1%} "
        f"(at most {kv_used['max']:.1%}), prefix hits {report['prefix_hit_ratio']:.1%}",
        f"plans            {report['plans']} of {report['plan_steps_mean']:.1f} steps, {report['revocations']} revoked",
        f"steps            {report['steps']}; {preemptions} preemptions, {swaps} of them by swap",
    ]


def _flow_lines(flows: Mapping[str, Any]) -> list[str]:
    """What became of each flow; nothing if there is only one."""
    if len(flows) < 2:
        return []
    head = f"{'flow':<17}{'class':<12}" + "".join(f"{name:>10}" for name in _FLOW_COLUMNS) + "  refused and failed"
    lines = [head]
    for name, flow in flows.items():
        numbers = [str(flow[key]) for key in ("offered", "accepted", "completed", "qualified")]
        numbers.append(f"{flow['qualified_per_second']:.2f}")
        problems = [f"{count} {reason}" for reason, count in {**flow["refused"], **flow["failed"]}.items()]
        row = "".join(f"{number:>10}" for number in numbers)
        lines.append(f"{name:<17}{flow['traffic_class']:<12}{row}  {', '.join(problems)}".rstrip())
    return [*lines, ""]


@click.command()
@_study_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, the same for the same options.")
def simulate(as_json: bool, **options: Any) -> None:
    """Ask what so many workers would do with so many requests.

    The real scheduler runs on a virtual clock with simulated workers. A step takes base + token * tokens in it +
    context * tokens in the caches of its sequences; measure your own (docs/simulator.md). Seconds of wall-clock time
    go to standard error.
    """
    study = service_module("scheduler", "simulator.study").Study(**options)
    began = time.perf_counter()
    progress = _Progress(study.requests)
    try:
        report = study.run(progress.show)
    except KeyboardInterrupt:
        done = f"{progress.over} of {study.requests} requests were over after {time.perf_counter() - began:.1f} s"
        raise Failure(f"interrupted: {done}; there is no report of a part", EXIT_INTERRUPTED) from None
    finally:
        progress.clear()
    click.echo(f"simulated {report['seconds']:.1f} s in {time.perf_counter() - began:.1f} s", err=True)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for line in to_lines(report):
        click.echo(line)


class _Progress:
    """One line on standard error that is kept up to date, if somebody can see it."""

    def __init__(self, total: int) -> None:
        self.over = 0
        self._total = total
        self._visible = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._width = 0

    def show(self, over: int) -> None:
        """So many requests are over."""
        self.over = over
        if self._visible and time.monotonic() - self._shown_at > 0.2:
            self._shown_at = time.monotonic()
            self._write(f"{over} of {self._total} requests")

    def clear(self) -> None:
        """Leaves the line to what comes next."""
        if self._width:
            self._write("")

    def _write(self, line: str) -> None:
        over, self._width = f"\r{line:{self._width}}\r{line}", len(line)
        # Last: what an interruption finds here is taken away.
        click.echo(over, nl=False, err=True)
