// Paged causal attention of q [T, H, D] over k_cache, v_cache [N, G, S, D] -> out [T, H, D], in parts that are launched
// one after the other: the plan once a step, the others once a layer. Nothing here waits for the device or reads from
// it. Dim letters: B sequences, T tokens, H query heads, G KV heads, D head size, N blocks, S slots per block.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// Where the tokens of a step stand, in device memory: worker/ops/attention.py, AttentionBatch.
struct AttentionRows {
  const int* query_starts;  // [B + 1]
  const int* context_lens;  // [B]
  const int* block_tables;  // [B, table_width]
  int num_sequences;
  int num_tokens;
  int table_width;
};

// The heads and the cache; `group` query heads read one KV head.
struct AttentionShape {
  Dtype dtype;
  int head_dim;
  int num_heads;
  int num_kv_heads;
  int block_size;
  std::int64_t num_blocks;
};

struct AttentionTensors {
  const void* q;
  std::int64_t q_token_stride;
  std::int64_t q_head_stride;
  const void* k_cache;
  const void* v_cache;
  void* out;
  float scale;
};

// How much room a plan needs, from what the host knows: upper bounds.
struct AttentionSizes {
  std::int64_t num_units;    // of decode: a token with one chunk of its context
  std::int64_t num_tiles;    // of prefill: a sequence with one tile of its query rows
  std::int64_t num_merged;   // tokens of decode
  std::int64_t num_blocks;   // CUDA blocks that share the units out
  std::int64_t plan_words;   // int32 words of the plan itself
  std::int64_t state_words;  // float words of what chunks leave to be merged
};

// The sizes for a step of num_tokens tokens in num_sequences sequences with tables of table_width blocks, whose
// contexts are total_context tokens together: an upper bound, or negative if the host knows none. Throws
// std::invalid_argument on a shape that has no kernel.
AttentionSizes attention_sizes(const AttentionShape& shape, int num_sequences, int num_tokens, int table_width,
                               std::int64_t total_context, int num_multiprocessors);

// Whether plan_attention and the two after it have kernels for the shape that fit the current device; attention_simple
// takes all.
bool attention_has_kernels(const AttentionShape& shape);

// Writes the plan of a step into plan [plan_words].
void plan_attention(const AttentionShape& shape, const AttentionRows& rows, const AttentionSizes& sizes, int* plan,
                    Stream stream);

// The tokens that are alone in their sequence's chunk; in a step of at most one token a sequence on average, all.
void attention_decode(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      const AttentionSizes& sizes, int* plan, float* states, Stream stream);

// The other tokens.
void attention_prefill(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                       const AttentionSizes& sizes, int* plan, Stream stream);

// All tokens, for every dtype and head size up to 256, without a plan and without haste.
void attention_simple(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      Stream stream);

}  // namespace tercet::cuda
