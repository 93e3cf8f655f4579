"""Puts a worker's parts together: model, KV cache and executor, within a memory budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch

from tercet.config import MeshConfig, WorkerSettings
from tercet.errors import ConfigError
from tercet.model_source import ModelSource

from . import _core
from .budget import Budget, plan_budget
from .executor import Executor
from .kv_cache import KVCache
from .messages import Attach, Chunk, Event, NewSequence, Plan, PlanDone
from .model.config import ModelConfig
from .model.decoder import Model
from .model.tensors import kv_block_bytes, weight_bytes
from .weights.loader import load_config, load_model

log = structlog.get_logger()

_DTYPES = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a worker will build, decided before anything is loaded."""

    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    budget: Budget


def plan_layout(config: MeshConfig, source: ModelSource) -> Layout:
    """Reads the model's shape and divides the memory. Loads no weights. Raises StartupError."""
    settings = config.worker
    model = load_config(source, config.model.max_model_len)
    device = _device(settings.device)
    dtype = _dtype(settings, device)
    block_size = settings.block_size or (16 if device.type == "cpu" else 64)
    budget = plan_budget(
        weight_bytes=weight_bytes(model, dtype, device),
        kv_block_bytes=kv_block_bytes(model, block_size, dtype),
        block_size=block_size,
        kv_cache_memory=settings.kv_cache_memory,
        available=_available_bytes(device),
        max_model_len=model.max_model_len,
    )
    return Layout(model, device, dtype, budget)


def build_executor(
    layout: Layout, source: ModelSource, settings: WorkerSettings, progress: Callable[[str], None]
) -> Executor:
    """Loads the model and builds an executor that has not been started. Raises StartupError."""
    if layout.device.type == "cpu":
        num_threads = settings.num_threads or len(os.sched_getaffinity(0))
        _core.set_num_threads(num_threads)
        # The kernels have their own threads; torch's would compete with them for the cores.
        torch.set_num_threads(1)
    model = load_model(source, layout.dtype, layout.device, progress, layout.model.max_model_len)
    return executor_for(model, layout, settings)


def executor_for(model: Model, layout: Layout, settings: WorkerSettings) -> Executor:
    """An executor for a model that is already in memory."""
    kv_cache = KVCache(
        layout.model,
        layout.budget.num_blocks,
        layout.budget.block_size,
        layout.dtype,
        layout.device,
        settings.enable_prefix_caching,
    )
    return Executor(model, kv_cache, layout.device)


def warm_up(executor: Executor, layout: Layout) -> None:
    """Runs a short prompt and a few tokens on a started executor, so that the first request finds everything loaded."""
    done = threading.Event()

    def emit(event: Event) -> None:
        if isinstance(event, PlanDone):
            done.set()

    length = min(16, layout.model.max_model_len - 1)
    executor.submit(Attach(emit))
    executor.submit(NewSequence(0, tuple(range(1, length)), min(length + 3, layout.model.max_model_len)))
    executor.submit(Plan(1, 4, (Chunk(0, length),), (0,)))
    done.wait(60)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("worker.device", f"must be cpu, cuda or cuda:N, is {name!r}") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("worker.device", f"is {name}, but torch {torch.__version__} finds no CUDA device here")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError("worker.device", f"is {name}, but there are {torch.cuda.device_count()} CUDA devices")
    elif device.type != "cpu":
        raise ConfigError("worker.device", f"must be cpu, cuda or cuda:N, is {name!r}")
    return device


def _dtype(settings: WorkerSettings, device: torch.device) -> torch.dtype:
    dtype = _DTYPES[settings.dtype]
    if dtype is torch.float16 and device.type == "cpu":
        raise ConfigError("worker.dtype", "float16 is for CUDA; the CPU kernels take bfloat16 or float32")
    return dtype


def _available_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            fields = dict(line.split(":", 1) for line in meminfo)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
