"""Measures a whole mesh on this host: gateway, scheduler and worker as processes, the client beside them.

    python -m bench.serve --out serve.json

The work is that of bench/engine.py's tiny preset, on the embedded model: decode rates at several batches, prefill, the
first token of one request, a mix of lengths. The first token is measured in turn on an executor of this process; the
difference is what gateway and scheduler add; it is given as the gateway's clock and as the client's clock has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import uvloop

import tercet
from bench.drive import Driver
from bench.workload import SMALL, Request, mixed, prompts
from tercet.cli.demo import private
from tercet.client import Client, Delta, Finished
from tercet.config import MeshConfig, load_config
from tercet.mesh_processes import MeshProcesses
from tercet.model_source import resolve_model
from worker.engine import build_executor, plan_layout

FIRST_TOKEN_RUNS = 40


@click.command()
@click.option("--model", default="embedded", help="as the setting model.model")
@click.option("--num-scheduler-steps", default=8, help="as the setting scheduler.num_scheduler_steps")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(model: str, num_scheduler_steps: int, out: Path | None) -> None:
    """Runs the work and prints each figure as it is known."""
    flags = {
        "model.model": model,
        "worker.max_num_seqs": 32,
        "worker.enable_prefix_caching": False,
        "scheduler.num_scheduler_steps": num_scheduler_steps,
    }
    config = load_config(flags=flags)
    result: dict[str, Any] = {"engine": f"tercet {tercet.__version__} mesh", "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder, _executor(config) as driver:
        result |= uvloop.run(_through_mesh(private(config), Path(folder), driver))
    print(json.dumps(result))
    if out is not None:
        out.write_text(json.dumps(result))


@contextlib.contextmanager
def _executor(config: MeshConfig) -> Iterator[Driver]:
    """The mesh's worker without a mesh: an executor of this process."""
    source = resolve_model(config.model.model)
    layout = plan_layout(config, source)
    executor = build_executor(layout, source, config.worker, lambda _: None)
    executor.start()
    yield Driver(executor, config.worker.max_num_batched_tokens, config.worker.max_num_seqs)
    executor.stop()


async def _through_mesh(config: MeshConfig, folder: Path, driver: Driver) -> dict[str, Any]:
    started = time.perf_counter()
    async with (
        MeshProcesses(config, on_change=lambda _: None, log_dir=folder) as mesh,
        Client(mesh.address) as client,
    ):
        start_s = time.perf_counter() - started
        print(f"ready after {start_s:.1f} s", flush=True)
        return {"start_s": start_s, **await _measure(client, (await client.model()).vocab_size, driver)}


async def _measure(client: Client, vocab_size: int, driver: Driver) -> dict[str, Any]:
    rng = random.Random(1)

    async def one(request: Request) -> tuple[float, float, int]:
        """Seconds to the first token as the client and as the gateway sees it, and tokens."""
        started, first, at_gateway, tokens = time.perf_counter(), 0.0, 0.0, 0
        async for event in client.generate(
            list(request.prompt), temperature=0.0, max_tokens=request.max_tokens, ignore_eos=True
        ):
            if isinstance(event, Delta):
                first = first or time.perf_counter() - started
                tokens += len(event.token_ids)
            elif isinstance(event, Finished):
                at_gateway = event.timings.time_to_first_token_seconds
        return first, at_gateway, tokens

    async def together(requests: list[Request]) -> tuple[float, int]:
        started = time.perf_counter()
        done = await asyncio.gather(*map(one, requests))
        return time.perf_counter() - started, sum(tokens for _, _, tokens in done)

    async def run(count: int, length: int, max_tokens: int) -> float:
        requests = [Request(prompt, max_tokens) for prompt in prompts(count, length, vocab_size, rng)]
        return (await together(requests))[0]

    await run(4, 32, 8)
    # In turn, so that all see the same machine.
    alone, client_ms, gateway_ms = [], [], []
    for prompt in prompts(FIRST_TOKEN_RUNS, SMALL.first_token_prompt, vocab_size, rng):
        alone.append(driver.run([Request(prompt, 1)])[0] * 1e3)
        at_client, at_gateway, _ = await one(Request(prompt, 1))
        client_ms.append(at_client * 1e3)
        gateway_ms.append(at_gateway * 1e3)
    added = median(through - by_itself for through, by_itself in zip(gateway_ms, alone, strict=True))
    added_client = median(through - by_itself for through, by_itself in zip(client_ms, alone, strict=True))
    print(
        f"first token of a {SMALL.first_token_prompt}-token prompt: executor {median(alone):.2f} ms; gateway and "
        f"scheduler add {added:.2f} ms, with the client's own call {added_client:.2f} ms",
        flush=True,
    )
    few, many = SMALL.outputs
    decode = {}
    for context, batches in SMALL.decode:
        for batch in batches:
            short = min([await run(batch, context, few) for _ in range(2)])
            long = min([await run(batch, context, many) for _ in range(2)])
            step = (long - short) / (many - few)
            decode[f"ctx{context}_b{batch}"] = {"step_ms": step * 1e3, "tok_s": batch / step}
            print(f"decode context {context} batch {batch}: {step * 1e3:.2f} ms, {batch / step:.0f} tok/s", flush=True)
    count, length = SMALL.prefill
    prefill = count * length / min([await run(count, length, 1) for _ in range(3)])
    print(f"prefill {count} x {length}: {prefill:.0f} tok/s", flush=True)
    requests = mixed(SMALL, vocab_size)
    seconds, tokens = await together(requests)
    print(f"mix of {len(requests)}: {len(requests) / seconds:.2f} req/s, {tokens / seconds:.0f} tok/s", flush=True)
    return {
        "decode": decode,
        "prefill_tok_s": prefill,
        "ttft_1req_ms": median(client_ms),
        "ttft_1req_executor_ms": median(alone),
        "ttft_added_ms": added,
        "ttft_added_with_client_ms": added_client,
        "mixed": {
            "requests": len(requests),
            "seconds": seconds,
            "req_s": len(requests) / seconds,
            "out_tok_s": tokens / seconds,
            "in_tokens": sum(len(request.prompt) for request in requests),
            "out_tokens": tokens,
        },
    }


if __name__ == "__main__":
    main()
