// Numbers of one byte, as a KV cache may keep them: 4 bits of exponent, 3 of mantissa, no infinity.
#pragma once

#include <cuda_fp8.h>

#include "kernel.cuh"

namespace tercet::cuda {

using E4m3 = __nv_fp8_e4m3;

// The nearest; the largest there is for what is beyond it.
template <>
__device__ inline E4m3 narrow<E4m3>(float x) {
  return E4m3(x);
}

// Four, exactly, as two pairs of float16.
__device__ inline void widen(uint32_t four, uint32_t (&pairs)[2]) {
#if __CUDA_ARCH__ >= 890
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(four));
#else
  __trap();  // no instruction for it, and no kernel that needs it is launched there
#endif
}

}  // namespace tercet::cuda
