// Kernels that may start before the one before them has ended, so that its last blocks hide their start. On GPUs before
// sm_90 they follow each other as usual.
#pragma once

#include "kernel.cuh"

namespace tercet::cuda {

// In a kernel launched by `launch_behind`, by every thread, before it reads what the kernel before writes or writes what
// that reads: waits for its end. Without it this kernel could end, and a third start, before the first has ended.
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
