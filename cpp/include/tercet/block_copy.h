// Copies of whole KV blocks, within a cache or between two.
#pragma once

#include <cstdint>
#include <vector>

namespace tercet {

struct BlockCopies {
  // Addresses of tensors of blocks, a pair for each copy of the same blocks: K and V of every layer.
  const std::vector<std::uintptr_t>& sources;
  const std::vector<std::uintptr_t>& targets;
  int64_t block_bytes;
  int64_t num_source_blocks;  // of each tensor of sources
  int64_t num_target_blocks;
  const std::vector<std::int32_t>& source_blocks;  // the i-th goes to the i-th of target_blocks
  const std::vector<std::int32_t>& target_blocks;
};

// Copies, in order. A block that is copied to its own place must be left out. Throws std::invalid_argument if a list is
// longer than its partner and std::out_of_range for a block that is not there, before any copy.
void copy_blocks(const BlockCopies& copies);

}  // namespace tercet
