#pragma once

#include <cstdint>
#include <vector>

#include "dtype.h"

namespace tercet::cuda {

// Copies of whole blocks between tensors [N, G, S, D] and their partners, on the GPU or in pinned host memory.
struct BlockCopy {
  const std::vector<std::uintptr_t>& sources;  // of each tensor
  const std::vector<std::uintptr_t>& targets;
  std::int64_t block_bytes;  // of a block in one tensor
  std::int64_t num_source_blocks, num_target_blocks;
  const std::vector<int>& source_blocks;  // a copy each
  const std::vector<int>& target_blocks;
  bool over_the_bus;  // a side is host memory
};

// As if one after the other, in order. Throws std::invalid_argument if the lists do not fit each other and
// std::out_of_range on a block that is not there, both before any copy; std::runtime_error if it cannot be launched.
void copy_blocks(const BlockCopy& copy, Stream stream);

}  // namespace tercet::cuda
