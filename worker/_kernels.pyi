"""CUDA kernels in C++ (cpp/cuda/), where nvcc was there to build them. Knows no torch: tensors come as addresses.

Dtypes are numbered as in worker/ops/dtypes.py; strides are in elements; `stream` is a cudaStream_t of the current
device. All launch and return: RuntimeError says that a launch failed, not that its work did.
"""

def rms_norm(
    dtype: int, x: int, x_outer_stride: int, x_inner_stride: int, residual: int, residual_outer_stride: int,
    residual_inner_stride: int, weight: int, out: int, num_outer: int, num_inner: int, dim: int, eps: float,
    stream: int, /,
) -> None:  # fmt: skip
    """cpp/cuda/norm.h. A `residual` of 0 is none."""
