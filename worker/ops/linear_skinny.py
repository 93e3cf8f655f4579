"""Products with few rows on a Hopper GPU, where reading the weight is all that takes time. Knows no layers."""

from __future__ import annotations

import torch
from torch import Tensor

from .dtypes import KERNEL_DTYPES, KERNELS_BUILT, stream_of

if KERNELS_BUILT:
    from .. import _kernels

# Rows of x up to which the kernel is faster than cuBLAS (docs/results.md).
MAX_ROWS = 16
# By device: what the kernel's blocks leave each other, zero between launches.
_left: dict[torch.device, Tensor] = {}
# The copy engine takes rows that start on multiples of so many bytes.
_COPY_BYTES = 16


class SkinnyLinear:
    """y = x W^T + b for up to MAX_ROWS rows, sums in float32. The tensors must not change while it is in use.

    An output's bits depend on its row of x, the shape of W and the number of multiprocessors, not on the other rows of
    x or their number. All of a GPU share memory: they may be used on one stream at a time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [N_out, K], bias [N_out], as `takes_weight` has it. Waits for the current stream of their GPU."""
        self._weight = weight
        self._bias = bias
        num_multiprocessors = torch.cuda.get_device_properties(weight.device).multi_processor_count
        if weight.device not in _left:
            _left[weight.device] = torch.zeros(
                _kernels.SkinnyLinear.left_bytes(num_multiprocessors), dtype=torch.uint8, device=weight.device
            )
        # It reads the weight without waiting for what is ahead on its stream.
        torch.cuda.current_stream(weight.device).synchronize()
        with torch.cuda.device(weight.device):
            self._kernel = _kernels.SkinnyLinear(
                KERNEL_DTYPES[weight.dtype], weight.data_ptr(), weight.stride(0), weight.shape[0], weight.shape[1],
                0 if bias is None else bias.data_ptr(), _left[weight.device].data_ptr(), num_multiprocessors,
            )  # fmt: skip

    def multiply(self, x: Tensor, out_dtype: torch.dtype, *, gated: bool) -> Tensor:
        """x [T, K] of the weight's dtype and on its GPU, T <= MAX_ROWS -> [T, N_out] of that dtype or float32.

        gated: [T, N_out / 2], silu(the first half of the outputs) * the second, rounded once.
        """
        num_rows, depth = x.shape
        if not _is_copied(x):
            x = torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)
        out = x.new_empty(num_rows, self._weight.shape[0] // 2 if gated else self._weight.shape[0], dtype=out_dtype)
        self._kernel.multiply(
            x.data_ptr(), x.stride(0) if num_rows > 1 else depth, num_rows, out.data_ptr(), out_dtype is torch.float32,
            gated, stream_of(x),
        )  # fmt: skip
        return out


def takes_weight(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether there is a kernel for this weight [N_out, K] on the GPU it is on, if it is on one."""
    return (
        KERNELS_BUILT
        and weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(weight.device) == (9, 0)
        and weight.shape[1] * weight.element_size() % _COPY_BYTES == 0
        and _is_copied(weight)
        and (bias is None or bias.is_contiguous())
    )


def _is_copied(x: Tensor) -> bool:
    """Whether the copy engine takes rows of x [T, K]."""
    row_stride, element_stride = x.stride()
    return (
        element_stride == 1
        and (row_stride * x.element_size() % _COPY_BYTES == 0 or x.shape[0] <= 1)
        and x.data_ptr() % _COPY_BYTES == 0
    )
