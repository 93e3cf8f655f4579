#include "tercet/block_copy.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace tercet {
namespace {

void check(const std::vector<std::int32_t>& blocks, int64_t num_blocks) {
  for (const std::int32_t block : blocks) {
    if (block < 0 || block >= num_blocks) {
      throw std::out_of_range("block " + std::to_string(block) + " is not one of " + std::to_string(num_blocks));
    }
  }
}

}  // namespace

void copy_blocks(const BlockCopies& copies) {
  if (copies.sources.size() != copies.targets.size() || copies.source_blocks.size() != copies.target_blocks.size()) {
    throw std::invalid_argument("a copy needs a source and a target");
  }
  check(copies.source_blocks, copies.num_source_blocks);
  check(copies.target_blocks, copies.num_target_blocks);
  for (std::size_t tensor = 0; tensor < copies.sources.size(); ++tensor) {
    const auto* source = reinterpret_cast<const char*>(copies.sources[tensor]);
    auto* target = reinterpret_cast<char*>(copies.targets[tensor]);
    for (std::size_t i = 0; i < copies.source_blocks.size(); ++i) {
      std::memcpy(target + copies.target_blocks[i] * copies.block_bytes,
                  source + copies.source_blocks[i] * copies.block_bytes, static_cast<std::size_t>(copies.block_bytes));
    }
  }
}

}  // namespace tercet
