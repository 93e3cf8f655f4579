// Paged causal attention of q [T, H, D] over k_cache, v_cache [N, G, S, D] -> out [T, H, D], in parts that are launched
// one after the other: the plan once a step, the others once a layer. Nothing here waits for the device or reads from
// it. Dim letters: B sequences, T tokens, H query heads, G KV heads, D head size, N blocks, S slots per block.
#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// Where the tokens of a step stand, in device memory: worker/ops/attention.py, AttentionBatch. A step may be padded:
// with sequences of no context or no tokens, and with tokens behind the last sequence's. What is written for their
// tokens is of no meaning.
struct AttentionRows {
  const int* query_starts;  // [B + 1]
  const int* context_lens;  // [B]
  const int* block_tables;  // [B, table_width]
  int num_sequences;
  int num_tokens;
  int table_width;
};

// The heads and the cache.
struct AttentionShape {
  Dtype dtype;
  Dtype cache_dtype;  // as `dtype`, or e4m3
  int head_dim;
  int num_heads;
  int num_kv_heads;
  int block_size;
  std::int64_t num_blocks;
  int window;  // tokens that a token sees, itself included; 0: all
};

struct AttentionTensors {
  const void* q;
  std::int64_t q_token_stride;
  std::int64_t q_head_stride;
  const void* k_cache;
  const void* v_cache;
  void* out;
  float scale;
  float k_scale, v_scale;  // what the cache's numbers are to be multiplied by
  float softcap;           // scores become softcap * tanh(score / softcap); 0: they stay
};

// What the host knows of a step's lengths: upper bounds, negative where it knows none.
struct AttentionBounds {
  std::int64_t total_context;  // tokens of all contexts together
  int num_chunked;             // sequences with more than one token
};

// How much room a plan needs: upper bounds.
struct AttentionSizes {
  bool all_decode;                // every token is one of decode
  bool one_each;                  // and the only one of its sequence, as far as tokens of decode go
  bool merges;                    // some token's context may be of several chunks
  std::int64_t num_units;         // of decode: a token with one chunk of its context
  std::int64_t num_tiles;         // of prefill: a sequence with one tile of its query rows
  std::int64_t num_tile_blocks;   // CUDA blocks, for each KV head, that take them in turn
  std::int64_t num_merged;        // tokens of decode of several chunks
  std::int64_t num_merge_blocks;  // CUDA blocks that merge them, a head each at a time
  std::int64_t num_blocks;        // CUDA blocks that share the units out
  std::int64_t plan_words;        // 32-bit words of the plan itself, so many that what follows it is aligned
  std::int64_t state_words;       // and of what chunks leave to be merged
};

// The sizes for a step of the rows' numbers. Bounds that turn out too low leave tokens without a result.
AttentionSizes attention_sizes(const AttentionShape& shape, const AttentionRows& rows, const AttentionBounds& bounds,
                               int num_multiprocessors);

// Whether plan_attention and the two after it have kernels for the shape that fit the current device; attention_simple
// takes all but e4m3.
bool attention_has_kernels(const AttentionShape& shape);

// Writes the plan of a step into plan [plan_words].
void plan_attention(const AttentionShape& shape, const AttentionRows& rows, const AttentionSizes& sizes, int* plan,
                    Stream stream);

// What `starts_early` says of a launch of decode: the kernel before it lets others start only after it has waited for
// the end of all before it, as place_heads and prefill do, and the plan is older than that kernel. Then all but the
// step's own keys and values may be read at once.
//
// The tokens that are alone in their sequence's chunk; all, where no sequence may have more than one or there are no
// more tokens than sequences.
void attention_decode(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      const AttentionSizes& sizes, int* plan, float* states, bool starts_early, Stream stream);

// The other tokens.
void attention_prefill(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                       const AttentionSizes& sizes, int* plan, Stream stream);

// All tokens, for every dtype and head size up to 256, without a plan and without haste.
void attention_simple(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      Stream stream);

}  // namespace tercet::cuda
