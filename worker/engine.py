"""Puts a worker's parts together: model, KV cache and executor, within a memory budget."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from tercet.config import MeshConfig, WorkerSettings
from tercet.errors import ConfigError, StartupError
from tercet.model_source import ModelSource

from . import _core
from .budget import Budget, plan_budget
from .executor import Executor
from .graph_steps import capture_steps
from .host_steps import HostSteps
from .kv_cache import KVCache
from .messages import Attach, Chunk, Detach, Event, NewSequence, Plan, PlanDone, StepResult
from .model.config import ModelConfig
from .model.decoder import Model
from .model.tensors import kv_block_bytes, weight_bytes, workspace_bytes
from .ops.dtypes import FP8, KERNEL_DTYPES, KERNELS_BUILT, KERNELS_PROBLEM
from .ops.step_attention import serves_fp8
from .step_sizes import graph_bytes
from .steps import Steps
from .swap_space import SwapSpace
from .weights.loader import load_config, load_model, random_model

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
    kv_dtype: torch.dtype
    budget: Budget


def plan_layout(config: MeshConfig, source: ModelSource) -> Layout:
    """Reads the model's shape and divides the memory. Loads no weights. Raises StartupError."""
    settings = config.worker
    model = load_config(source, config.model.max_model_len)
    device = _device(settings.device)
    _check_kernels(device)
    try:
        _core.isa()
    except RuntimeError as error:  # TERCET_ISA asks for what this CPU or build does not have
        raise StartupError(str(error)) from error
    dtype = _dtype(settings, device)
    block_size = settings.block_size or (16 if device.type == "cpu" else 64)
    kv_dtype = _kv_dtype(settings, device, dtype, model.head_dim, block_size)
    block_bytes = kv_block_bytes(model, block_size, kv_dtype)
    graphs = 0
    if _captures(device, dtype):
        num_cache_tokens = settings.kv_cache_memory // block_bytes * block_size
        graphs = graph_bytes(model, dtype, settings.max_num_seqs, num_cache_tokens)
    budget = plan_budget(
        weight_bytes=weight_bytes(model, dtype, device),
        workspace_bytes=workspace_bytes(model, dtype, settings.max_num_batched_tokens, settings.max_num_seqs),
        kv_block_bytes=block_bytes,
        block_size=block_size,
        kv_cache_memory=settings.kv_cache_memory,
        available=_available_bytes(device),
        memory_fraction=settings.memory_fraction,
        graph_bytes=graphs,
        max_model_len=model.max_model_len,
        swap_space=settings.swap_space,
        host_available=_available_bytes(torch.device("cpu")),
        device_is_host=device.type == "cpu",
    )
    return Layout(model, device, dtype, kv_dtype, budget)


def build_executor(
    layout: Layout,
    source: ModelSource,
    settings: WorkerSettings,
    progress: Callable[[str], None],
    on_death: Callable[[], None] = lambda: None,
) -> Executor:
    """Loads the model and builds an executor that has not been started. Raises StartupError."""
    if layout.device.type == "cpu":
        num_threads = settings.num_threads or len(os.sched_getaffinity(0))
        _core.set_num_threads(num_threads)
        # The kernels have their own threads; torch's would compete with them for the cores.
        torch.set_num_threads(1)
    if settings.load_format == "dummy":
        progress("random weights: worker.load_format is dummy")
        model = random_model(layout.model, layout.dtype, layout.device, seed=0)
    else:
        model = load_model(source, layout.dtype, layout.device, progress, layout.model.max_model_len)
    return executor_for(model, layout, settings, on_death)


def executor_for(
    model: Model, layout: Layout, settings: WorkerSettings, on_death: Callable[[], None] = lambda: None
) -> Executor:
    """An executor for a model that is already in memory.

    Raises StartupError if the host refuses the swap space, or the device the memory of captured steps.
    """
    kv_cache = KVCache(
        layout.model,
        layout.budget.num_blocks,
        layout.budget.block_size,
        layout.kv_dtype,
        layout.device,
        settings.enable_prefix_caching,
    )
    swap_space = _swap_space(kv_cache, layout.budget)
    return Executor(_steps(model, kv_cache, settings), kv_cache, swap_space, on_death=on_death)


def _steps(model: Model, kv_cache: KVCache, settings: WorkerSettings) -> Steps:
    if not _captures(model.device, model.dtype):
        return HostSteps(model, kv_cache)
    try:
        return capture_steps(model, kv_cache, settings.max_num_seqs)
    except torch.OutOfMemoryError as error:
        raise StartupError(f"no memory is left to capture steps; lower worker.kv_cache_memory: {error}") from error


def _captures(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether steps are captured as graphs, which takes kernels that never ask the host."""
    return device.type == "cuda" and KERNELS_BUILT and dtype in KERNEL_DTYPES


def _swap_space(kv_cache: KVCache, budget: Budget) -> SwapSpace:
    try:
        swap_space = SwapSpace(kv_cache, budget.num_swap_blocks)
    except RuntimeError as error:
        raise StartupError(f"worker.swap_space: the host refuses {budget.swap_bytes:,} bytes: {error}") from error
    swap_space.measure()
    return swap_space


def warm_up(executor: Executor, layout: Layout) -> None:
    """Runs a short prompt and a few tokens on a started executor, so that the first request finds everything loaded.

    Raises StartupError if that does not work: a worker that cannot compute must not say that it is ready.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    length = min(16, layout.model.max_model_len - 1)
    if length < 1:
        return
    executor.submit(Attach(events.put))
    executor.submit(NewSequence(0, (0,) * length, min(length + 3, layout.model.max_model_len)))
    executor.submit(Plan(1, 4, (Chunk(0, length),), (0,)))
    try:
        while not isinstance(event := _next_event(executor, events), PlanDone):
            for ended in event.ended if isinstance(event, StepResult) else ():
                if ended.failure is not None:
                    raise StartupError(f"the model's first step failed: {ended.failure.message}; see the log above")
    finally:
        executor.submit(Detach(events.put))


def _next_event(executor: Executor, events: queue.SimpleQueue[Event]) -> Event:
    while True:
        try:
            return events.get(timeout=1.0)
        except queue.Empty:
            if not executor.alive:
                raise StartupError("the model's first step ended the executor; see the log above") from None


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


def _check_kernels(device: torch.device) -> None:
    if not KERNELS_PROBLEM:
        return
    if device.type == "cuda":
        raise StartupError(
            f"worker.device is {device}, and the CUDA extension that was built here does not load: {KERNELS_PROBLEM}; "
            "build it again with python cpp/build_kernels.py, or delete worker/_kernels.* to leave GPUs to PyTorch"
        )
    log.warning("cuda_extension_broken", problem=KERNELS_PROBLEM)


def _dtype(settings: WorkerSettings, device: torch.device) -> torch.dtype:
    dtype = _DTYPES[settings.dtype]
    if dtype is torch.float16 and device.type == "cpu":
        raise ConfigError("worker.dtype", "float16 is for CUDA; the CPU kernels take bfloat16 or float32")
    return dtype


def _kv_dtype(
    settings: WorkerSettings, device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int
) -> torch.dtype:
    if settings.kv_cache_dtype == "auto":
        return dtype
    if device.type == "cpu":
        raise ConfigError(
            "worker.kv_cache_dtype", "fp8 is for CUDA; on a CPU the KV cache has the type of worker.dtype"
        )
    if dtype is torch.float32 or not serves_fp8(device, head_dim, block_size):
        raise ConfigError(
            "worker.kv_cache_dtype",
            "fp8 takes a Hopper GPU, the CUDA extension, worker.dtype bfloat16 or float16, heads of 64 or 128 elements "
            f"and blocks of 2**n tokens; here are {device}, {str(dtype).removeprefix('torch.')}, heads of {head_dim} "
            f"and blocks of {block_size}",
        )
    return FP8


def _available_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min((found for found in (_host_bytes(), _cgroup_bytes(Path("/sys/fs/cgroup"))) if found), default=None)


def _host_bytes() -> int | None:
    """What the host could give, page cache that it would give up included."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _cgroup_bytes(folder: Path) -> int | None:
    """What the limit of a container leaves, None without one (cgroup v2)."""
    try:
        return max(0, int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        return None
