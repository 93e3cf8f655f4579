// What all kernels share: the dtypes, 16-byte vectors of them, and how a failed launch is said.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "dtype.h"

namespace tercet::cuda {

constexpr int kWarp = 32;

// Elements of 16 bytes, moved as one.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// The sum over a warp, the same bits in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  return x;
}

inline bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// After a launch: nothing here waits for the kernel, so what it does wrong shows at the next synchronisation.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Calls f(T{}) for the C++ type of `dtype`.
template <typename F>
void with_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f32:
      return f(float{});
    case Dtype::f16:
      return f(__half{});
    case Dtype::bf16:
      return f(__nv_bfloat16{});
    case Dtype::e4m3:
      break;
  }
  throw std::invalid_argument("no kernel for dtype " + std::to_string(static_cast<int>(dtype)));
}

}  // namespace tercet::cuda
