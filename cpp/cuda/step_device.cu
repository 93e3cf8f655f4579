#include <pthread.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "kernel.cuh"
#include "step_device.h"

namespace tercet::cuda {

std::shared_ptr<StepGraph> make_step_graph(CUgraph_st* graph, Stream stream) {
  auto made = std::shared_ptr<StepGraph>(new StepGraph, [](StepGraph* it) {
    if (it->exec != nullptr) cudaGraphExecDestroy(it->exec);
    delete it;
  });
  check(cudaGraphInstantiate(&made->exec, graph, 0), "step graph");
  check(cudaGraphUpload(made->exec, stream), "step graph");
  return made;
}

CudaStepDevice::CudaStepDevice(int num_records, int max_rows)
    : ring_{nullptr, nullptr, nullptr, num_records, max_rows} {
  if (num_records < 2 || max_rows < 1) {
    throw std::invalid_argument(std::to_string(num_records) + " records of " + std::to_string(max_rows) +
                                " rows are too few");
  }
  const auto bytes = static_cast<std::size_t>(ring_.stride() * num_records);
  check(cudaGetDevice(&device_), "step records");
  check(cudaHostAlloc(reinterpret_cast<void**>(&ring_.records), bytes, cudaHostAllocMapped), "step records");
  std::memset(ring_.records, 0, bytes);
  try {
    check(cudaMalloc(reinterpret_cast<void**>(&ring_.num_committed), sizeof(std::uint64_t)), "step records");
    check(cudaMemset(ring_.num_committed, 0, sizeof(std::uint64_t)), "step records");
    const auto token_bytes = static_cast<std::size_t>(max_rows) * sizeof(std::int32_t);
    check(cudaMalloc(reinterpret_cast<void**>(&ring_.last_tokens), token_bytes), "step records");
    check(cudaMemset(ring_.last_tokens, 0xff, token_bytes), "step records");
    check(cudaDeviceSynchronize(), "step records");
  } catch (...) {
    free();
    throw;
  }
}

CudaStepDevice::~CudaStepDevice() {
  // A step that hangs may still write there, and freeing would wait for it.
  if (!stream_ || cudaStreamQuery(*stream_) != cudaErrorNotReady) free();
}

void CudaStepDevice::free() {
  cudaFree(ring_.num_committed);
  cudaFree(ring_.last_tokens);
  cudaFreeHost(ring_.records);
}

void CudaStepDevice::begin_thread() {
  check(cudaSetDevice(device_), "step loop");
  pthread_setname_np(pthread_self(), "step-loop");
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds, instead of 50 us
}

void CudaStepDevice::launch(const StepGraph& graph, Stream stream) {
  stream_ = stream;
  check(cudaGraphLaunch(graph.exec, stream), "step");
}

const StepRecord* CudaStepDevice::find(std::uint64_t sequence) {
  const auto place = static_cast<std::int64_t>((sequence - 1) % static_cast<std::uint64_t>(ring_.num_records));
  const auto* record = reinterpret_cast<const StepRecord*>(ring_.records + place * ring_.stride());
  return __atomic_load_n(&record->sequence, __ATOMIC_ACQUIRE) == sequence ? record : nullptr;
}

bool CudaStepDevice::is_idle() {
  const cudaError_t state = stream_ ? cudaStreamQuery(*stream_) : cudaSuccess;
  if (state == cudaErrorNotReady) return false;
  check(state, "step");
  return true;
}

std::int64_t CudaStepDevice::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void CudaStepDevice::sleep(std::int64_t ns) {
  if (ns > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    return;
  }
#if defined(__x86_64__)
  for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
}

}  // namespace tercet::cuda
