// Causal attention over a paged KV cache.
#pragma once

#include <cstdint>

#include "tercet/cpu.h"
#include "tercet/linear.h"

namespace tercet {

// Dim letters: B sequences, T tokens in the batch, H query heads, G KV heads, D head size, N blocks, S slots per block.
struct AttentionCall {
  Dtype dtype;    // of q, both caches and out
  const void* q;  // [T, H, D], strides below, D contiguous
  int64_t q_token_stride;
  int64_t q_head_stride;
  const void* k_cache;  // [N, G, S, D], contiguous
  const void* v_cache;
  void* out;  // [T, H, D], contiguous
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t num_blocks;
  int64_t block_size;
  int64_t num_sequences;
  const int32_t* query_starts;  // [B + 1]
  const int32_t* context_lens;  // [B]
  const int32_t* block_tables;  // [B, table_width]
  int64_t table_width;
  float scale;
  int64_t window;  // positions that a query sees, its own included; 0: all
  float softcap;   // scores become softcap * tanh(score / softcap); 0: they stay
};

// Query token i of sequence b, token query_starts[b] + i of the batch, stands at position context_len - query_len + i
// and sees positions up to its own, the last `window` of these; what no query of the call sees is not read, but for
// some keys beside those that one sees. The work is dealt out to the pool by its length.
//
// A query's result depends on its own q and the keys and values that it sees alone, to the bit: keys are taken in
// chunks that start at multiples of kChunkKeys, and chunks in segments that start at multiples of kSegmentKeys,
// whatever the batch, the chunking of its prefill and the number of threads.
//
// Throws std::invalid_argument, before any work, if lengths contradict each other or a table names no block.
void paged_attention(const AttentionCall& call, Isa isa);

// One tile's queries: the heads that share a KV head, of some neighbouring tokens of one sequence. Row r is head
// r % (H / G) of token r / (H / G).
struct AttentionTile {
  int64_t sequence;
  int64_t kv_head;
  int64_t first_token;  // in the batch
  int64_t num_tokens;
  int64_t first_position;
};

constexpr int64_t kChunkKeys = 64;     // keys per step of the online softmax
constexpr int64_t kSegmentKeys = 128;  // keys that one thread takes at once
constexpr int64_t kMaxTileRows = 64;   // unless one token has more heads in a group

// The first position that the query at `position` sees.
inline int64_t first_seen(const AttentionCall& call, int64_t position) {
  return call.window == 0 || position < call.window ? 0 : position + 1 - call.window;
}

// A tile's attention over the keys seen so far: for each row the largest score, the sum of e^(score - largest), and
// the sum of values so weighted, [rows, padded_head_dim].
struct AttentionState {
  float* largest;
  float* sum;
  float* values;
};

// Head size rounded up to whole vectors.
inline int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of scratch that the kernels need for `num_rows` rows.
inline int64_t attention_scratch_floats(int64_t num_rows, int64_t head_dim) {
  const int64_t padded = padded_head_dim(head_dim);
  return num_rows * (padded + kChunkKeys + 1) + 2 * padded * kChunkKeys + 16;
}

}  // namespace tercet
