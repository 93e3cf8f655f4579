// Copies of whole tiles by Hopper's copy engine. sm_90 and later.
#pragma once

#include "tensor_map.h"
#include "warpgroup.cuh"

namespace tercet::cuda {

// Arrives, and lets the phase end only when this many bytes have been copied as well.
__device__ inline void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The tile whose first element is (row, column); `barrier` counts its bytes when they have arrived.
__device__ inline void copy_tile(uint32_t to, const TensorMap& matrix, int row, int column, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&matrix), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

__device__ inline void copy_tile(uint32_t to, const TensorMap& matrix, int row, int column, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&matrix), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// After init_barrier, before the copy engine uses the barriers.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

}  // namespace tercet::cuda
