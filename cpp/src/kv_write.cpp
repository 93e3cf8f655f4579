#include "tercet/kv_write.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "tercet/thread_pool.h"

namespace tercet {

void write_kv(const KvWrite& write) {
  const int64_t num_slots = write.num_blocks * write.block_size;
  for (int64_t token = 0; token < write.num_tokens; ++token) {
    if (write.slots[token] < 0 || write.slots[token] >= num_slots) {
      throw std::out_of_range("token " + std::to_string(token) + " goes to slot " + std::to_string(write.slots[token]) +
                              ", the cache has " + std::to_string(num_slots));
    }
  }
  const size_t element = dtype_size(write.dtype);
  const size_t row = element * write.head_dim;
  const auto* k = static_cast<const char*>(write.k);
  const auto* v = static_cast<const char*>(write.v);
  const int64_t num_elements = write.num_kv_heads * write.head_dim;
  parallel(write.num_tokens * num_elements >= kMinElementsToShare, write.num_tokens, row_grain(num_elements),
           [&](Range tokens) {
             for (int64_t token = tokens.begin; token < tokens.end; ++token) {
               const int64_t block = write.slots[token] / write.block_size;
               const int64_t offset = write.slots[token] % write.block_size;
               for (int64_t g = 0; g < write.num_kv_heads; ++g) {
                 const int64_t at = (block * write.num_kv_heads + g) * write.block_size + offset;
                 std::memcpy(static_cast<char*>(write.k_cache) + at * row,
                             k + (token * write.k_token_stride + g * write.k_head_stride) * element, row);
                 std::memcpy(static_cast<char*>(write.v_cache) + at * row,
                             v + (token * write.v_token_stride + g * write.v_head_stride) * element, row);
               }
             }
           });
}

}  // namespace tercet
