// Copies of whole tiles by Hopper's copy engine, and barriers between the blocks of a cluster. sm_90 and later.
#pragma once

#include "tensor_map.h"
#include "warpgroup.cuh"

namespace tercet::cuda {

// Arrives, and lets the phase end only when this many bytes have been copied as well.
__device__ inline void arrive_expecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// For what is read once: it leaves the L2 first.
__device__ inline uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
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

// After init_barrier, before other blocks or the copy engine use the barriers.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// All threads of all blocks of the cluster: barriers that were shown before an arrival may be used after the wait.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline int rank_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Where block `rank` of the cluster has what is here at `address` of shared memory.
__device__ inline uint32_t address_in_cluster(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// To another block, behind the thread's back; the barrier, in the same block, counts the bytes when they have arrived.
// Fences would wait for all that is under way.
__device__ inline void store_in_cluster(uint32_t address, float first, float second, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
}

// Waits for the end of the phase of this parity of a barrier that counts what other blocks store.
__device__ inline void wait_cluster_barrier(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline float4 load_shared(uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

}  // namespace tercet::cuda
