"""Measures a whole mesh under arrivals that do not wait for it: gateway, scheduler, worker and client on this host.

    python -m bench.open_loop --preset 8b --device cuda --rates 20,40 --out open_loop.json
    python -m bench.open_loop --device cpu --rates 1,2 --seconds 20

Requests arrive at random, independently (Poisson), for `--seconds`, with the lengths of bench/workload.py and greedy
outputs of a fixed length, and are read as streams. A request is good if its first token comes within 1 s and its later
ones at most 40 ms apart on average. Before them, `--alone` requests of 512 tokens are sent, each some time after the
last has ended. At the end, `--cancels` of 64 running streams are cancelled one after the other:
the time from the client's cancel to the worker's word that the blocks are free, on the clock of this host.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import torch
import uvloop

import tercet
from bench.arrivals import ask, greedy, lag, send, tpot, ttft
from bench.dummy_model import MAX_MODEL_LEN, write_dummy_model
from bench.workload import PRESETS, Request, mixed, prompts, work_for
from tercet.cli.demo import private
from tercet.config import load_config
from tercet.load.ask import Ask
from tercet.load.exchange import Exchange
from tercet.load.figures import gaps, percentile
from tercet.load.grpc_target import GrpcTarget
from tercet.mesh_processes import MeshProcesses
from tercet.sections import MeshConfig

GOOD_TTFT_S = 1.0
GOOD_TPOT_S = 0.040
ALONE_PROMPT = 512
ALONE_PAUSE_S = 0.05
CANCEL_STREAMS = 64
CANCEL_CONTEXT = 512


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="shape of model and lengths")
@click.option("--model", default="", help="as the setting model.model; default: the preset with random weights")
@click.option("--device", default="cpu", help="as the setting worker.device")
@click.option("--rates", default="2", help="requests a second, one run for each")
@click.option("--seconds", default=12.0, help="how long requests arrive")
@click.option("--at-once", default=0, help="also this many requests at once, first")
@click.option("--alone", default=0, help="also this many requests one after the other, before all else")
@click.option("--cancels", default=0, help="streams to cancel at the end, one after the other")
@click.option("--set", "settings", multiple=True, help="KEY=VALUE, such as scheduler.num_scheduler_steps=8")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(
    preset: str, model: str, device: str, rates: str, seconds: float, at_once: int, alone: int,
    cancels: int, settings: Sequence[str], out: Path | None,
) -> None:  # fmt: skip
    """Runs the load and prints a line for each rate."""
    on_cpu = device == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        flags: dict[str, Any] = {
            "model.model": model or folder,
            "model.load_format": "auto" if model else "dummy",
            "model.max_model_len": MAX_MODEL_LEN,
            "worker.device": device,
            "worker.kv_cache_memory": 1 << 30 if on_cpu else 40 << 30,
            "worker.max_num_batched_tokens": 512 if on_cpu else 8192,
            "worker.max_num_seqs": 32 if on_cpu else 256,
            "worker.enable_prefix_caching": False,
            # All the work is to be done, however late.
            "scheduler.admission_mode": "off",
            "log.format": "json",
        }
        flags |= dict(one.split("=", 1) for one in settings)
        if not model:
            write_dummy_model(PRESETS[preset], Path(folder))
        config = private(load_config(flags=flags))
        load = Load(preset, [float(rate) for rate in rates.split(",") if rate], seconds, at_once, alone, cancels)
        result: dict[str, Any] = {"engine": f"tercet {tercet.__version__} mesh", "torch": torch.__version__}
        result |= {"preset": preset, "device": device, "settings": list(settings)}
        result |= uvloop.run(_measure(config, load))
    print(json.dumps(result))
    if out is not None:
        out.write_text(json.dumps(result))


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What to do to a mesh."""

    preset: str
    rates: Sequence[float]
    seconds: float
    at_once: int
    alone: int
    cancels: int


async def _measure(config: MeshConfig, load: Load) -> dict[str, Any]:
    work = work_for(load.preset)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            MeshProcesses(config, on_change=lambda _: None, log_dir=Path(folder), start_timeout_s=300) as mesh,
            GrpcTarget(mesh.address) as target,
        ):
            result: dict[str, Any] = {"start_s": time.perf_counter() - started, "open_loop": []}
            print(f"ready after {result['start_s']:.1f} s", flush=True)
            vocab_size = (await target.describe()).vocab_size
            assert vocab_size is not None
            await send(target, [greedy(0.0, prompt, 8) for prompt in prompts(8, 64, vocab_size, random.Random(9))])
            requests = mixed(work, vocab_size)
            if load.alone:
                result["alone_ms"] = await _alone(target, vocab_size, load.alone)
            if load.at_once:
                result["at_once"] = await _all_at_once(target, requests[: load.at_once])
            for rate in load.rates:
                result["open_loop"].append(await _arrivals(target, requests, rate, load.seconds))
            if load.cancels:
                result["cancel_ms"] = await _cancels(target, vocab_size, load.cancels, Path(folder) / "worker.log")
            return result


async def _alone(target: GrpcTarget, vocab_size: int, count: int) -> dict[str, float]:
    """Milliseconds to the first token of a request that finds nobody else."""
    rng = random.Random(7)
    times = []
    for prompt in prompts(count, ALONE_PROMPT, vocab_size, rng):
        times.append(ttft(await ask(target, greedy(0.0, prompt, 4))) * 1e3)
        await asyncio.sleep(ALONE_PAUSE_S)
    result = {f"p{percent}": percentile(times, percent) for percent in (50, 95)}
    print(f"alone: first token p50 {result['p50']:.1f}, p95 {result['p95']:.1f} ms of {count}", flush=True)
    return result


async def _all_at_once(target: GrpcTarget, requests: Sequence[Request]) -> dict[str, float]:
    started = time.perf_counter()
    seen = await send(target, [greedy(0.0, request.prompt, request.max_tokens) for request in requests])
    took = time.perf_counter() - started
    tokens, refused = sum(one.tokens for one in seen), sum(one.error is not None for one in seen)
    rate = (len(seen) - refused) / took
    print(f"{len(seen)} at once: {rate:.1f} req/s, {tokens / took:.0f} tok/s, {refused} refused", flush=True)
    return {"requests": len(seen), "seconds": took, "req_s": rate, "out_tok_s": tokens / took, "refused": refused}


def _asks(requests: Sequence[Request], rate: float, seconds: float) -> Iterator[Ask]:
    rng = random.Random(int(rate * 1000))
    due = 0.0
    for request in itertools.cycle(requests):
        due += rng.expovariate(rate)
        if due >= seconds:
            return
        yield greedy(due, request.prompt, request.max_tokens)


async def _arrivals(target: GrpcTarget, requests: Sequence[Request], rate: float, seconds: float) -> dict[str, Any]:
    started = time.perf_counter()
    everyone = await send(target, _asks(requests, rate, seconds))
    took = time.perf_counter() - started
    seen = [one for one in everyone if one.error is None and one.tokens]
    result: dict[str, Any] = {"rate": rate, "sent": len(everyone), "refused": len(everyone) - len(seen)}
    result["client_lag_ms"] = lag(everyone)
    if not seen:
        print(f"{rate:g} req/s: nothing was served", flush=True)
        return result
    several = [one for one in seen if one.tokens > 1]
    columns = {
        "ttft_ms": [ttft(one) * 1e3 for one in seen],
        "tpot_ms": [tpot(one) * 1e3 for one in several],
        "largest_gap_ms": [max(gaps(one.moments), default=0.0) * 1e3 for one in several],
    }
    for name, values in columns.items():
        result[name] = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    good = sum(ttft(one) <= GOOD_TTFT_S and tpot(one) <= GOOD_TPOT_S for one in seen)
    result |= {"done_req_s": len(seen) / took, "good_req_s": good / took}
    shown = "; ".join(
        f"{name[:-3]} " + " / ".join(f"{value:.1f}" for value in result[name].values()) + " ms" for name in columns
    )
    print(
        f"{rate:g} req/s: {shown} (p50 / p95 / p99); done {result['done_req_s']:.1f}, good {result['good_req_s']:.1f} "
        f"req/s, {result['refused']} refused",
        flush=True,
    )
    return result


async def _cancels(target: GrpcTarget, vocab_size: int, count: int, log: Path) -> dict[str, float]:
    """Milliseconds from a client's cancel to the worker's word that the blocks are free, at a steady batch."""
    rng = random.Random(5)

    def stream() -> asyncio.Task[Exchange]:
        prompt = prompts(1, CANCEL_CONTEXT, vocab_size, rng)[0]
        return asyncio.create_task(ask(target, greedy(0.0, prompt, MAX_MODEL_LEN - CANCEL_CONTEXT)))

    running = [stream() for _ in range(CANCEL_STREAMS)]
    await asyncio.sleep(3.0)
    asked = []
    for _ in range(count):
        victim = running.pop(0)
        asked.append(time.time())
        victim.cancel()
        running.append(stream())
        await asyncio.sleep(rng.uniform(0.05, 0.1))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await asyncio.sleep(0.5)
    # One at a time: a release belongs to the last cancel before it. A stream that had just ended has none.
    releases = _releases(log)
    nexts = [*asked[1:], asked[-1] + 0.1]
    waits = [
        1e3 * (min(between) - at)
        for at, following in zip(asked, nexts, strict=True)
        if (between := [done for done in releases if at <= done < following])
    ]
    result = {"p50": percentile(waits, 50), "p99": percentile(waits, 99), "worst": max(waits), "count": len(waits)}
    print(f"cancel to blocks free: p50 {result['p50']:.1f}, p99 {result['p99']:.1f} ms of {len(waits)}", flush=True)
    return result


def _releases(log: Path) -> list[float]:
    """When a worker let cancelled sequences go, in seconds since the epoch, by its log."""
    records = (json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{")
    return [
        datetime.fromisoformat(record["timestamp"].replace("Z", "+00:00")).timestamp()
        for record in records
        if record["event"] == "sequence_released" and record["cause"] == "cancel"
    ]


if __name__ == "__main__":
    main()
