"""What a worker will build, decided before anything is loaded: types, devices, and how the memory is divided."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from tercet.errors import ConfigError, StartupError
from tercet.model_source import ModelSource
from tercet.sections import MeshConfig, Quantization, WorkerSettings

from . import _core
from .budget import Budget, Room, Usage, gpu_room, host_room, plan_budget
from .model.config import ModelConfig
from .model.tensors import kv_block_bytes, weight_bytes, workspace_bytes
from .ops.dtypes import FP8, KERNEL_DTYPES, KERNELS_BUILT, KERNELS_PROBLEM
from .ops.linear_fp8 import fp8_problem
from .ops.step_attention import serves_fp8
from .step_sizes import graph_bytes
from .weights.loader import load_config

log = structlog.get_logger()

_DTYPES = {
    "auto": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
# Where memory that is never touched costs nothing, and the host is for others, too.
_KV_CACHE_ON_CPU = 1 << 30
# Kernels, which are loaded at their first use, and cuBLAS's memory, about.
_LIBRARIES_ON_GPU = 512 << 20
# For bfloat16 products, and what the kernels are built for.
_LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a worker will build. The budget is an estimate on a GPU until the model is there to be measured."""

    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    budget: Budget
    quantization: Quantization = "none"

    @property
    def captures(self) -> bool:
        """Whether steps are captured as graphs, which takes kernels that never ask the host."""
        return captures(self.device, self.dtype)

    @property
    def most_cache_tokens(self) -> int:
        """As many tokens as the cache holds at most, however little anything else should turn out to need."""
        budget = self.budget
        if budget.room is None:
            return budget.num_tokens
        beside_weights = max(0, budget.room.size - budget.usage.weights)
        return max(budget.num_tokens, beside_weights // budget.kv_block_bytes * budget.block_size)

    def measured(self, usage: Usage, settings: WorkerSettings) -> Layout:
        """The same with what was measured on a GPU. Raises StartupError if that does not fit."""
        budget = self.budget
        return dataclasses.replace(
            self,
            budget=plan_budget(
                usage=usage,
                room=budget.room,
                kv_cache_memory=settings.kv_cache_memory,
                kv_block_bytes=budget.kv_block_bytes,
                block_size=budget.block_size,
                max_model_len=budget.max_model_len,
                swap_space=settings.swap_space,
                device_is_host=False,
            ),
        )


def captures(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether steps of `dtype` are captured on `device`."""
    return device.type == "cuda" and KERNELS_BUILT and dtype in KERNEL_DTYPES


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
    _check_quantization(settings, device, dtype)
    block_size = settings.block_size or (16 if device.type == "cpu" else 64)
    kv_dtype = _kv_dtype(settings, device, dtype, model.head_dim, block_size)
    block_bytes = kv_block_bytes(model, block_size, kv_dtype)
    weights = weight_bytes(model, dtype, device, settings.quantization)
    room = _room(settings, device)
    kv_cache_memory = _kv_cache_memory(settings, device)
    graphs = 0
    if captures(device, dtype):
        cache_bytes = kv_cache_memory or (max(0, room.size - weights) if room is not None else 0)
        graphs = graph_bytes(model, dtype, settings.max_num_seqs, cache_bytes // block_bytes * block_size)
    budget = plan_budget(
        usage=Usage(
            weights=weights,
            workspace=workspace_bytes(model, dtype, settings.max_num_batched_tokens, settings.max_num_seqs),
            graphs=graphs,
            libraries=_LIBRARIES_ON_GPU if device.type == "cuda" else 0,
        ),
        room=room,
        kv_cache_memory=kv_cache_memory,
        kv_block_bytes=block_bytes,
        block_size=block_size,
        max_model_len=model.max_model_len,
        swap_space=settings.swap_space,
        host_available=_host_available(),
        device_is_host=device.type == "cpu",
    )
    return Layout(model, device, dtype, kv_dtype, budget, settings.quantization)


def _kv_cache_memory(settings: WorkerSettings, device: torch.device) -> int:
    """Bytes; 0 for what the GPU has left."""
    return settings.kv_cache_memory or (_KV_CACHE_ON_CPU if device.type == "cpu" else 0)


def _room(settings: WorkerSettings, device: torch.device) -> Room | None:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return gpu_room(free, total, settings.gpu_memory_utilization)
    return host_room(_host_available(), settings.memory_fraction)


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
        # Not all of torch's functions take a device without its number.
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError("worker.device", f"must be cpu, cuda or cuda:N, is {name!r}")
    return device


def _check_kernels(device: torch.device) -> None:
    if device.type == "cuda":
        _check_capability(device)
        if not KERNELS_BUILT and not KERNELS_PROBLEM:
            log.warning(
                "cuda_extension_missing",
                problem="PyTorch computes instead, several times slower",
                remedy="build it where nvcc is: python cpp/build_kernels.py",
            )
    if not KERNELS_PROBLEM:
        return
    if device.type == "cuda":
        raise StartupError(
            f"worker.device is {device}, and the CUDA extension that was built here does not load: {KERNELS_PROBLEM}; "
            "build it again with python cpp/build_kernels.py, or delete worker/_kernels.* to leave GPUs to PyTorch"
        )
    log.warning("cuda_extension_broken", problem=KERNELS_PROBLEM)


def _check_capability(device: torch.device) -> None:
    found = torch.cuda.get_device_capability(device)
    if found < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise StartupError(
            f"worker.device is {device}, a {name} of compute capability {found[0]}.{found[1]}; "
            f"{_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]} or newer is needed: choose another GPU, or set "
            "worker.device to cpu"
        )


def _dtype(settings: WorkerSettings, device: torch.device) -> torch.dtype:
    dtype = _DTYPES[settings.dtype]
    if dtype is torch.float16 and device.type == "cpu":
        raise ConfigError("worker.dtype", "float16 is for CUDA; the CPU kernels take bfloat16 or float32")
    return dtype


def _check_quantization(settings: WorkerSettings, device: torch.device, dtype: torch.dtype) -> None:
    if settings.quantization == "none":
        return
    if device.type == "cpu":
        raise ConfigError("worker.quantization", "fp8 is for CUDA; the CPU kernels multiply in worker.dtype")
    if dtype is not torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise ConfigError("worker.quantization", f"fp8 takes worker.dtype bfloat16, is {name}")
    if (problem := fp8_problem(device)) is not None:
        raise ConfigError("worker.quantization", f"{device} does not multiply in fp8, as Hopper GPUs do: {problem}")


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


def _host_available() -> int | None:
    """What the host could give, within the limit of a container; None if unknown."""
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
