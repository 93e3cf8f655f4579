"""Measures a whole mesh on this host: gateway, scheduler and worker as processes, the client beside them.

    python -m bench.serve --out serve.json
    python -m bench.serve --preset 8b --model /path/to/model --device cuda

The work is that of bench/engine.py with the same preset, with prompts of token ids; the model is whatever `--model`
says. First, on a mesh of its own whose worker logs its steps, one request at a time: the time to the first token less
the time of the step that computed it is what gateway, scheduler and streams add, request by request. Both are taken on
the clock of one machine in one run, so that noise in the step drops out. Then decode rates, prefill and the mix.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
import torch
import uvloop

import tercet
from bench.measure import measure
from bench.workload import PRESETS, Request, Work, prompts, work_for
from tercet.cli.demo import private
from tercet.client import AsyncClient, Delta, Finished
from tercet.config import load_config
from tercet.mesh_processes import MeshProcesses
from tercet.sections import MeshConfig

FIRST_TOKEN_RUNS = 60


@click.command()
@click.option("--model", default="embedded", help="as the setting model.model")
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny", help="whose work to do")
@click.option("--device", default="cpu", help="as the setting worker.device")
@click.option("--num-scheduler-steps", default=8, help="as the setting scheduler.num_scheduler_steps")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(model: str, preset: str, device: str, num_scheduler_steps: int, out: Path | None) -> None:
    """Runs the work and prints each figure as it is known."""
    on_cpu = device == "cpu"
    flags = {
        "model.model": model,
        "worker.device": device,
        "worker.kv_cache_memory": 1 << 30 if on_cpu else 40 << 30,
        "worker.max_num_batched_tokens": 512 if on_cpu else 8192,
        "worker.max_num_seqs": 32 if on_cpu else 256,
        "worker.enable_prefix_caching": False,
        "scheduler.num_scheduler_steps": num_scheduler_steps,
        # All the work is to be done, however late.
        "scheduler.admission_mode": "off",
    }
    config, work = private(load_config(flags=flags)), work_for(preset)
    result: dict[str, Any] = {"engine": f"tercet {tercet.__version__} mesh", "torch": torch.__version__}
    result |= {"preset": preset, "model": model, "device": device}
    added = uvloop.run(_first_tokens(config, work.first_token_prompt))
    result |= uvloop.run(_all_work(config, work)) | added
    print(json.dumps(result))
    if out is not None:
        out.write_text(json.dumps(result))


@dataclasses.dataclass(frozen=True, slots=True)
class Timed:
    """One request: seconds to its first token on the client's clock and on the gateway's, and its tokens."""

    first_at_client: float
    first_at_gateway: float
    tokens: int


async def _ask(client: AsyncClient, request: Request) -> Timed:
    started, first, at_gateway, tokens = time.perf_counter(), 0.0, 0.0, 0
    async for event in client.generate(
        list(request.prompt), temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True
    ):
        if isinstance(event, Delta):
            first = first or time.perf_counter() - started
            tokens += len(event.token_ids)
        elif isinstance(event, Finished):
            at_gateway = event.timings.time_to_first_token_seconds
    return Timed(first, at_gateway, tokens)


async def _first_tokens(config: MeshConfig, length: int) -> dict[str, Any]:
    """What the mesh adds to the step that computes a prompt of `length` tokens and its first token."""
    config = dataclasses.replace(config, log=dataclasses.replace(config.log, level="debug", format="json"))
    rng = random.Random(2)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            MeshProcesses(config, on_change=lambda _: None, log_dir=Path(folder)) as mesh,
            AsyncClient(mesh.address) as client,
        ):
            vocab_size = (await client.model()).vocab_size
            for prompt in prompts(5, length, vocab_size, rng):
                await _ask(client, Request(prompt, 1))
            timed = [
                await _ask(client, Request(prompt, 1)) for prompt in prompts(FIRST_TOKEN_RUNS, length, vocab_size, rng)
            ]
        records = [
            json.loads(line) for line in (Path(folder) / "worker.log").read_text().splitlines() if line[:1] == "{"
        ]
    # Each request was one step: a prompt that fits a step, and one token.
    steps = [record["step_us"] / 1e3 for record in records if record["event"] == "step"][-FIRST_TOKEN_RUNS:]
    at_gateway = [one.first_at_gateway * 1e3 - step for one, step in zip(timed, steps, strict=True)]
    at_client = [one.first_at_client * 1e3 - step for one, step in zip(timed, steps, strict=True)]
    deciles = quantiles(at_gateway, n=10)
    result = {
        "ttft_1req_ms": median(one.first_at_client for one in timed) * 1e3,
        "ttft_1req_executor_ms": median(steps),
        "ttft_added_ms": median(at_gateway),
        "ttft_added_p10_ms": deciles[0],
        "ttft_added_p90_ms": deciles[-1],
        "ttft_added_with_client_ms": median(at_client),
    }
    print(
        f"first token of a {length}-token prompt: step {median(steps):.2f} ms; gateway, scheduler and streams add "
        f"{median(at_gateway):.2f} ms (p10 {deciles[0]:.2f}, p90 {deciles[-1]:.2f}), with the client's own call "
        f"{median(at_client):.2f} ms",
        flush=True,
    )
    return result


async def _all_work(config: MeshConfig, work: Work) -> dict[str, Any]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            MeshProcesses(config, on_change=lambda _: None, log_dir=Path(folder)) as mesh,
            AsyncClient(mesh.address) as client,
        ):
            start_s = time.perf_counter() - started
            print(f"ready after {start_s:.1f} s", flush=True)
            vocab_size = (await client.model()).vocab_size
            loop = asyncio.get_running_loop()

            async def together(requests: Sequence[Request]) -> tuple[float, int]:
                begun = time.perf_counter()
                done = await asyncio.gather(*(_ask(client, request) for request in requests))
                return time.perf_counter() - begun, sum(one.tokens for one in done)

            def run(requests: Sequence[Request]) -> tuple[float, int]:
                return asyncio.run_coroutine_threadsafe(together(requests), loop).result()

            return {"start_s": start_s, **await asyncio.to_thread(measure, run, work, vocab_size)}


if __name__ == "__main__":
    main()
