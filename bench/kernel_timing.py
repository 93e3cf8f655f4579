"""How long the GPU takes for calls over cold memory, and what it could do at best. Knows no kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

Call = Callable[[], object]

GPU = torch.device("cuda")
DTYPE = torch.bfloat16
# Bytes of inputs that no L2 holds, and the most sets of them.
COLD_BYTES, MAX_SETS = 512 << 20, 64


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine was measured to do at best."""

    copy: float  # GB/s, reads and writes counted
    product: float  # TFLOP/s


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `rate` is in GB/s or TFLOP/s; peers are in microseconds."""

    kernel: str
    shape: str
    us: float
    rate: float
    unit: str
    roof: float  # share of what the machine can do
    peers: dict[str, float] = field(default_factory=dict)


def num_sets(num_bytes: int) -> int:
    """How many sets of inputs of this size are cold when their turn comes again."""
    return max(2, min(MAX_SETS, -(-COLD_BYTES // max(1, num_bytes))))


def microseconds(calls: Sequence[Call], replays: int = 15) -> float:
    """Of one call; `calls` do the same on different memory. They must not wait for the GPU."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return timed(graph.replay, replays) / len(calls)


def timed(call: Call, repeat: int = 15) -> float:
    """Microseconds of the GPU for one call, which may wait for it."""
    call()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return float(median(times))


def measure_roofs() -> Roofs:
    """By a large copy and a large product."""
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=GPU)
    target = torch.empty_like(source)
    copy = 2 * source.numel() / timed(lambda: target.copy_(source)) / 1e3
    size = 8192
    a, b = randn(size, size), randn(size, size)
    return Roofs(copy, 2 * size**3 / timed(lambda: a @ b) / 1e6)


def memory_row(kernel: str, shape: str, num_bytes: int, us: float, roofs: Roofs, **peers: float) -> Row:
    """A line for a kernel that memory decides; it moves at least `num_bytes`."""
    rate = num_bytes / us / 1e3
    return Row(kernel, shape, us, rate, "GB/s", rate / roofs.copy, peers)


def product_row(kernel: str, shape: str, flop: int, us: float, roofs: Roofs, **peers: float) -> Row:
    """A line for a kernel that products decide."""
    rate = flop / us / 1e6
    return Row(kernel, shape, us, rate, "TFLOP/s", rate / roofs.product, peers)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=GPU, dtype=DTYPE)
