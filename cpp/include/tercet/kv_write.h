// Writes into a paged KV cache.
#pragma once

#include <cstdint>

#include "tercet/linear.h"

namespace tercet {

struct KvWrite {
  Dtype dtype;
  const void* k;  // [T, G, D], strides below, D contiguous
  const void* v;
  int64_t k_token_stride, k_head_stride;
  int64_t v_token_stride, v_head_stride;
  void* k_cache;  // [N, G, S, D], contiguous
  void* v_cache;
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_blocks;
  int64_t block_size;
  const int64_t* slots;  // [T], block * S + offset
};

// Writes each token's keys and values at its slot. Throws std::out_of_range, before any write, for a slot outside of
// the cache.
void write_kv(const KvWrite& write);

}  // namespace tercet
