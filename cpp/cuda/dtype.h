// Element types of the CUDA kernels, by the numbers worker/ops/dtypes.py gives them. Plain C++: bindings include it.
#pragma once

struct CUstream_st;

namespace tercet::cuda {

enum class Dtype { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3 };  // the last for KV caches alone

using Stream = CUstream_st*;  // cudaStream_t, without the headers of CUDA

}  // namespace tercet::cuda
