// Rotary position embedding in place, "rotate half".
#pragma once

#include <cstdint>

#include "tercet/cpu.h"
#include "tercet/linear.h"

namespace tercet {

// Strides in elements; head_dim elements are contiguous and even in number.
struct RopeCall {
  Dtype dtype;
  void* q;  // [T, H, D]
  int64_t q_token_stride, q_head_stride, num_heads;
  void* k;  // [T, G, D]
  int64_t k_token_stride, k_head_stride, num_kv_heads;
  int64_t num_tokens;
  int64_t head_dim;
  const int64_t* positions;  // [T]
  const float* cos_sin;      // [num_positions, D], cosines first
  int64_t num_positions;
};

// Throws std::out_of_range, before any write, for a position outside of the table.
void apply_rope(const RopeCall& call, Isa isa);

}  // namespace tercet
