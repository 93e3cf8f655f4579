// Kernels that may start before the one before them has ended, so that its last blocks hide their start. On GPUs before
// sm_90 they follow each other as usual.
#pragma once

#include <atomic>

#include "kernel.cuh"

namespace tercet::cuda {

// In a kernel launched by `launch_behind`, by every thread, before it reads what the kernel before writes or writes
// what that reads: waits for its end. Without it this kernel could end, and a third start, before the first has ended.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// In the kernel before: once all its blocks have said so or ended, the next one's take what room is left.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A kernel may use more shared memory than is usual, once that has been said on a device.
template <typename Kernel>
void allow_shared_bytes(Kernel* kernel, int bytes, std::atomic<std::uint64_t>& allowed, const char* name) {
  int device = 0;
  check(cudaGetDevice(&device), name);
  const std::uint64_t bit = std::uint64_t{1} << (device % 64);
  if (allowed.load(std::memory_order_relaxed) & bit) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  allowed.fetch_or(bit, std::memory_order_relaxed);
}

template <typename Arguments>
void launch_behind(void (*kernel)(Arguments), dim3 blocks, int threads, int shared_bytes, Stream stream,
                   const std::remove_const_t<Arguments>& args, const char* name) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args), name);
}

}  // namespace tercet::cuda
