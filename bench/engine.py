"""Measures the worker's executor on random weights: decode steps, prefill, first token, a mix of lengths.

    python -m bench.engine --preset tiny --device cpu --out engine.json

The JSON has the fields of the peers' reports, so that they can be laid side by side.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import torch

import tercet
from bench.drive import Driver
from bench.measure import measure
from bench.workload import PRESETS, Shape, work_for
from tercet.sections import Quantization, WorkerSettings
from tercet.telemetry import configure_logging
from worker import _core
from worker.budget import Budget, Usage, plan_budget
from worker.engine import executor_for
from worker.executor import Executor
from worker.layout import Layout
from worker.model.config import ModelConfig, RopeConfig
from worker.model.tensors import kv_block_bytes, weight_bytes, workspace_bytes
from worker.weights.loader import random_model

MAX_MODEL_LEN = 4096


def model_config(shape: Shape) -> ModelConfig:
    """The model of a preset."""
    return ModelConfig(
        family="llama",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=1e-5,
        max_position=8192,
        max_model_len=MAX_MODEL_LEN,
        rope=RopeConfig(theta=500_000.0),
        tie_word_embeddings=shape.tie_word_embeddings,
    )


@click.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default="tiny")
@click.option("--device", default="cpu", help="cpu or cuda")
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16")
@click.option("--quantization", type=click.Choice(["none", "fp8"]), default="none")
@click.option("--kv-cache-memory", type=int, default=0, help="bytes; 0: 1 GiB on CPU, 40 GiB on CUDA")
@click.option("--max-num-batched-tokens", type=int, default=0, help="0: 512 on CPU, 8192 on CUDA")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="JSON file to write")
def main(
    preset: str,
    device: str,
    dtype: str,
    quantization: Quantization,
    kv_cache_memory: int,
    max_num_batched_tokens: int,
    out: Path | None,
) -> None:
    """Runs the work of a preset and prints each figure as it is known."""
    # A line a step would be measured too.
    configure_logging("bench", "warning")
    on_cpu = device == "cpu"
    settings = WorkerSettings(
        device=device,
        quantization=quantization,
        kv_cache_memory=kv_cache_memory or (1 << 30 if on_cpu else 40 << 30),
        max_num_batched_tokens=max_num_batched_tokens or (512 if on_cpu else 8192),
        max_num_seqs=32 if on_cpu else 256,
        enable_prefix_caching=False,
    )
    started = time.perf_counter()
    driver = start_driver(PRESETS[preset], settings, getattr(torch, dtype))
    result: dict[str, Any] = {"engine": f"tercet {tercet.__version__}", "torch": torch.__version__, "preset": preset}
    result["quantization"] = quantization
    result["device"] = device if not on_cpu else f"cpu {_core.isa()} x{_core.num_threads()}"
    result["start_s"] = time.perf_counter() - started
    result |= measure(driver.run, work_for(preset), PRESETS[preset].vocab_size)
    print(json.dumps(result))
    if out is not None:
        out.write_text(json.dumps(result))


def start_driver(shape: Shape, settings: WorkerSettings, dtype: torch.dtype) -> Driver:
    """A driver of a started executor with random weights."""
    executor, _ = start_executor(shape, settings, dtype)
    return Driver(executor, settings.max_num_batched_tokens, settings.max_num_seqs)


def start_executor(shape: Shape, settings: WorkerSettings, dtype: torch.dtype) -> tuple[Executor, Budget]:
    """A started executor with random weights, and the blocks it has."""
    device = torch.device(settings.device)
    model = model_config(shape)
    block_size = settings.block_size or (16 if device.type == "cpu" else 64)
    budget = plan_budget(
        usage=Usage(
            weights=weight_bytes(model, dtype, device, settings.quantization),
            workspace=workspace_bytes(model, dtype, settings.max_num_batched_tokens, settings.max_num_seqs),
        ),
        room=None,
        kv_block_bytes=kv_block_bytes(model, block_size, dtype),
        block_size=block_size,
        kv_cache_memory=settings.kv_cache_memory,
        max_model_len=MAX_MODEL_LEN,
        swap_space=settings.swap_space,
    )
    if device.type == "cpu":
        torch.set_num_threads(1)
    layout = Layout(model, device, dtype, dtype, budget, settings.quantization)
    executor = executor_for(random_model(model, dtype, device, 0, settings.quantization), layout, settings)
    executor.start()
    return executor, budget


if __name__ == "__main__":
    main()
