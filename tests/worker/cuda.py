"""What the tests of the CUDA kernels share. They are skipped where there is no GPU or the kernels were not built."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from worker.ops.dtypes import KERNELS_BUILT

needs_cuda = pytest.mark.skipif(
    not (KERNELS_BUILT and torch.cuda.is_available()), reason="needs a CUDA device and worker._kernels"
)
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def poison(*shape: int, dtype: torch.dtype) -> None:
    """Leaves NaN in the memory that the next tensor of this size gets, so that what a kernel leaves out shows."""
    torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def assert_close(got: Tensor, want: Tensor) -> None:
    """`want` in float64, `got` within its dtype's rounding of it."""
    tolerance = TOLERANCES[got.dtype]
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)
