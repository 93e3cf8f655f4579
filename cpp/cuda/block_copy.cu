// Blocks of B bytes in many tensors -> blocks in their partners.
//
// A thread block per (copy, tensor), 16 bytes a thread. Addresses and block numbers are arguments of the kernel, so
// nothing is copied to the GPU first and the host may go on at once. Host memory is read and written in place by a few
// thread blocks: they fill the bus and leave the GPU to the model.
#include <unordered_set>

#include "block_copy.h"
#include "kernel.cuh"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxTensors = 64, kMaxCopies = 128;  // of a launch; arguments have room for 4 KB
constexpr int kBlocksOnBus = 32;
constexpr int kUnroll = 4;

struct Batch {
  const char* sources[kMaxTensors];
  char* targets[kMaxTensors];
  int source_blocks[kMaxCopies], target_blocks[kMaxCopies];
  int num_tensors, num_copies;
  std::int64_t block_bytes;
};

template <typename V>
__global__ void __launch_bounds__(kThreads) copy_kernel(__grid_constant__ const Batch batch) {
  const std::int64_t num_vectors = batch.block_bytes / static_cast<int>(sizeof(V));
  for (int task = blockIdx.x; task < batch.num_tensors * batch.num_copies; task += gridDim.x) {
    const int tensor = task / batch.num_copies, copy = task % batch.num_copies;
    const auto* from =
        reinterpret_cast<const V*>(batch.sources[tensor] + batch.source_blocks[copy] * batch.block_bytes);
    auto* to = reinterpret_cast<V*>(batch.targets[tensor] + batch.target_blocks[copy] * batch.block_bytes);
    for (std::int64_t first = threadIdx.x; first < num_vectors; first += kUnroll * kThreads) {
      V values[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (first + j * kThreads < num_vectors) values[j] = from[first + j * kThreads];
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (first + j * kThreads < num_vectors) to[first + j * kThreads] = values[j];
      }
    }
  }
}

void launch(const Batch& batch, bool over_the_bus, Stream stream) {
  const int num_tasks = batch.num_tensors * batch.num_copies;
  if (num_tasks == 0 || batch.block_bytes == 0) return;
  bool in_vectors = batch.block_bytes % 16 == 0;
  for (int i = 0; i < batch.num_tensors; ++i) {
    in_vectors = in_vectors && is_aligned(batch.sources[i]) && is_aligned(batch.targets[i]);
  }
  const int num_blocks = over_the_bus && num_tasks > kBlocksOnBus ? kBlocksOnBus : num_tasks;
  if (in_vectors) {
    copy_kernel<uint4><<<num_blocks, kThreads, 0, stream>>>(batch);
  } else {
    copy_kernel<char><<<num_blocks, kThreads, 0, stream>>>(batch);
  }
  check_launch("copy_blocks");
}

void check_blocks(const std::vector<int>& blocks, std::int64_t num_blocks) {
  for (const int block : blocks) {
    if (block < 0 || block >= num_blocks) {
      throw std::out_of_range("block " + std::to_string(block) + " is not one of " + std::to_string(num_blocks));
    }
  }
}

}  // namespace

void copy_blocks(const BlockCopy& copy, Stream stream) {
  if (copy.sources.size() != copy.targets.size()) throw std::invalid_argument("a tensor needs a partner");
  if (copy.source_blocks.size() != copy.target_blocks.size()) {
    throw std::invalid_argument("a copy needs a source and a target");
  }
  check_blocks(copy.source_blocks, copy.num_source_blocks);
  check_blocks(copy.target_blocks, copy.num_target_blocks);
  const bool same_tensors = copy.sources == copy.targets;
  const std::size_t num_copies = copy.source_blocks.size(), num_tensors = copy.sources.size();
  for (std::size_t first = 0; first < num_copies;) {
    // Copies of one launch run in any order: a block that one writes is not touched by another.
    std::unordered_set<int> read, written;
    Batch batch{};
    batch.block_bytes = copy.block_bytes;
    std::size_t end = first;
    for (; end < num_copies && end - first < kMaxCopies; ++end) {
      const int source = copy.source_blocks[end], target = copy.target_blocks[end];
      if (written.count(target) != 0) break;
      if (same_tensors && (written.count(source) != 0 || read.count(target) != 0)) break;
      read.insert(source);
      written.insert(target);
      batch.source_blocks[end - first] = source;
      batch.target_blocks[end - first] = target;
    }
    batch.num_copies = static_cast<int>(end - first);
    for (std::size_t tensor = 0; tensor < num_tensors; tensor += kMaxTensors) {
      const std::size_t left = num_tensors - tensor;
      batch.num_tensors = static_cast<int>(left < kMaxTensors ? left : kMaxTensors);
      for (int i = 0; i < batch.num_tensors; ++i) {
        batch.sources[i] = reinterpret_cast<const char*>(copy.sources[tensor + i]);
        batch.targets[i] = reinterpret_cast<char*>(copy.targets[tensor + i]);
      }
      launch(batch, copy.over_the_bus, stream);
    }
    first = end;
  }
}

}  // namespace tercet::cuda
