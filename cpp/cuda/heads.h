#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// What happens to the heads of T tokens between their projection and attention; each part can be left out.
//   q [T, H, D], in place: RMSNorm over D (q_norm), then rotation
//   k [T, G, D]: RMSNorm over D (k_norm), rotation; to k_cache at the token's slot, or in place without a cache
//   v [T, G, D]: to v_cache at the token's slot
// A cache of e4m3 gets k / k_scale and v / v_scale, and its largest number for what is larger.
// Rotation takes element d with element d + D/2, by row `position` of cos_sin [P, D]: cosines first, then sines.
// Nothing is rounded between norm, rotation and store. Caches are [N, G, S, D], contiguous. A token with a slot outside
// of the cache, or a position outside of the table, is not written: batches may be padded with -1.
struct Heads {
  Dtype dtype;
  Dtype cache_dtype;  // as `dtype`, or e4m3
  void* q;
  std::int64_t q_token_stride, q_head_stride;
  void* k;
  std::int64_t k_token_stride, k_head_stride;
  const void* v;  // null: none
  std::int64_t v_token_stride, v_head_stride;
  const void* q_norm;  // null: none
  const void* k_norm;
  float eps;
  const std::int64_t* positions;
  const float* cos_sin;  // null: no rotation
  std::int64_t num_positions;
  void* k_cache;  // null: k stays where it is
  void* v_cache;
  float k_scale, v_scale;
  const std::int64_t* slots;
  std::int64_t num_slots;  // N * S
  int block_size;
  std::int64_t num_tokens;
  int num_heads, num_kv_heads, head_dim;
};

// Throws std::invalid_argument if head_dim is odd or above 512, or the cache's dtype is none for it,
// std::runtime_error if it cannot be launched.
void place_heads(const Heads& heads, Stream stream);

}  // namespace tercet::cuda
