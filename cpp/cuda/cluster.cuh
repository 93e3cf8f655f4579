// Thread blocks that work on one thing together: a cluster on Hopper, one block alone elsewhere.
#pragma once

#include <cooperative_groups.h>

#include "kernel.cuh"

namespace tercet::cuda {

constexpr int kMaxTeam = 8;  // what every GPU with clusters grants

template <int kBlocks>
struct Team {
  static_assert(kBlocks <= kMaxTeam);

  static __device__ int rank() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return static_cast<int>(cooperative_groups::this_cluster().block_rank());
#endif
    return 0;
  }

  // All threads of all its blocks; what they wrote to shared memory before it, all see after it.
  static __device__ void sync() {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) {
      cooperative_groups::this_cluster().sync();
      return;
    }
#endif
    __syncthreads();
  }

  // `mine`, in shared memory, as block `rank` has it.
  template <typename T>
  static __device__ T* at(T* mine, int rank) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
#endif
    return mine;
  }
};

}  // namespace tercet::cuda
