// Launching kernels that give each row of logits a team of thread blocks with all the shared memory there is.
#pragma once

#include <type_traits>

#include "cluster.cuh"
#include "kernel.cuh"
#include "sampler_sums.cuh"
#include "sampler_tokens.cuh"

namespace tercet::cuda {

inline int device_attribute(cudaDeviceAttr name, const char* kernel) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), kernel);
  check(cudaDeviceGetAttribute(&value, name, device), kernel);
  return value;
}

// Calls f(std::integral_constant<int, blocks of a team>{}): more than one where the GPU has clusters and `num_rows`
// are too few to fill it.
template <typename F>
void with_team(int num_rows, const char* kernel, F&& f) {
  const bool has_clusters = device_attribute(cudaDevAttrClusterLaunch, kernel) != 0;
  // Clusters leave some multiprocessors of their groups unused, and a second wave would cost more than they save.
  const int num_blocks = has_clusters ? device_attribute(cudaDevAttrMultiProcessorCount, kernel) * 7 / 8 : 0;
  const int blocks_per_row = num_blocks / num_rows;
  if (blocks_per_row >= 8) return f(std::integral_constant<int, 8>{});
  if (blocks_per_row >= 4) return f(std::integral_constant<int, 4>{});
  if (blocks_per_row >= 2) return f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, 1>{});
}

// Launches a team of `kBlocks` for each row. The kernel's first argument is the candidates that its Shared has room
// for beside the shared memory that it declares itself.
template <int kBlocks, typename... Parameters, typename... Arguments>
void launch_team(void (*kernel)(int, Parameters...), int num_rows, Stream stream, const char* name,
                 Arguments... arguments) {
  cudaFuncAttributes declared{};
  check(cudaFuncGetAttributes(&declared, kernel), name);
  const int shared_bytes =
      device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, name) - static_cast<int>(declared.sharedSizeBytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), name);
  const int max_candidates = (shared_bytes - static_cast<int>(sizeof(Shared))) / static_cast<int>(sizeof(Candidate));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_rows) * kBlocks);
  config.blockDim = dim3(kSamplerThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = kBlocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, max_candidates, arguments...), name);
}

}  // namespace tercet::cuda
