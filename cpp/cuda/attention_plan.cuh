// What a step's attention is cut into, and how that lies in memory.
#pragma once

#include <type_traits>

#include "attention.h"
#include "kernel.cuh"

namespace tercet::cuda {

// Tokens of context that are one unit of decode work. A constant: what a token's chunks and so its result are must not
// depend on the batch. Small, so that one long sequence fills the GPU; merging costs 0.8 % of the traffic.
constexpr int kChunk = 512;

// The fewest slots of a block that the kernels take.
constexpr int kMinSlots = 8;

// Query heads of one KV head that a unit takes at once: the columns of its products. Larger groups are several parts.
constexpr int kPartHeads = 16;

// CUDA blocks of decode that share a multiprocessor.
constexpr int decode_blocks(int head_dim) { return head_dim > 128 ? 1 : head_dim > 64 ? 3 : 4; }

// And of merging.
constexpr int kMergeBlocks = 8;

// What a token that has so many tokens of context sees, and the chunks that this lies in.
struct Reach {
  int first_token, first_chunk, num_chunks;
};

__device__ inline Reach reach_of(int window, int context) {
  const int first_token = window == 0 ? 0 : max(0, context - window), first_chunk = first_token / kChunk;
  return {first_token, first_chunk, (context + kChunk - 1) / kChunk - first_chunk};
}

// One token with one chunk of its context.
struct alignas(16) Unit {
  int token;
  int sequence;
  int context;  // tokens up to the token itself
  int chunk;
};

// Where the units of a decode token of several chunks are.
struct MergedToken {
  int token;
  int first_unit;
  int num_chunks;
};

// A tile of the query rows (token, head of the group) of one sequence.
struct alignas(8) Tile {
  int sequence;
  int index;
};

// The items of a block: [begin, end), item = unit * parts + part. With the first one's unit, which it reads first.
struct alignas(16) Share {
  int begin;
  int end;
  int unit_index;
  int part;
  Unit unit;
};

// A plan, in one piece of int32 words.
struct Plan {
  int* num_tiles;
  int* num_merged;
  int* weights;  // [num_units + 1], the weight before each unit
  Unit* units;
  Share* shares;  // [num_blocks]
  Tile* tiles;
  MergedToken* merged;
};

// The query tokens of a sequence. Lengths that do not fit the step are the caller's mistake; they must not become wild
// reads.
struct Span {
  int first_token, num_tokens, context;
};

__device__ inline Span span_of(const AttentionRows& rows, int max_context, int sequence) {
  const int first = min(max(rows.query_starts[sequence], 0), rows.num_tokens);
  const int end = min(rows.query_starts[sequence + 1], rows.num_tokens);
  return {first, max(0, end - first), min(rows.context_lens[sequence], max_context)};
}

inline int group_of(const AttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }

inline int parts_of_group(int group) { return (group + kPartHeads - 1) / kPartHeads; }

// Parts that a unit has, each a CUDA block's item: KV heads times parts of their groups.
inline int parts_of(const AttentionShape& shape) { return shape.num_kv_heads * parts_of_group(group_of(shape)); }

constexpr float kLog2E = 1.4426950408889634f;

// What scores, or the tanh of them where these are capped, are multiplied by to be exponents of 2.
inline float scale_log2(const AttentionTensors& tensors) {
  return (tensors.softcap > 0.0f ? tensors.softcap : tensors.scale * tensors.k_scale) * kLog2E;
}

// What scores are multiplied by for tanh_of_power, where they are capped; else 0.
inline float cap_log2(const AttentionTensors& tensors) {
  return tensors.softcap > 0.0f ? 2.0f * kLog2E * tensors.scale * tensors.k_scale / tensors.softcap : 0.0f;
}

// Query rows of a tile.
inline int tile_rows(int head_dim) { return head_dim > 128 ? 64 : 128; }

// Calls f(T{}, D) for the dtype and the head size of kernels, D a constant.
template <typename F>
void with_heads(const AttentionShape& shape, F&& f) {
  const auto with_dim = [&](auto zero) {
    switch (shape.head_dim) {
      case 64:
        return f(zero, std::integral_constant<int, 64>{});
      case 96:
        return f(zero, std::integral_constant<int, 96>{});
      case 128:
        return f(zero, std::integral_constant<int, 128>{});
      case 256:
        return f(zero, std::integral_constant<int, 256>{});
    }
    throw std::invalid_argument("no attention for head size " + std::to_string(shape.head_dim));
  };
  shape.dtype == Dtype::bf16 ? with_dim(__nv_bfloat16{}) : with_dim(__half{});
}

inline int log2_of(int power) {
  int exponent = 0;
  while ((1 << exponent) < power) ++exponent;
  return exponent;
}

// With room for whatever may be merged, so that smaller steps never need more.
inline std::int64_t words_of_plan(const AttentionSizes& sizes, std::int64_t most_merged) {
  const std::int64_t words =
      4 + 4 * sizes.num_units + 8 * sizes.num_blocks + 2 * sizes.num_tiles + (sizes.num_units + 1) + 3 * most_merged;
  return (words + 3) / 4 * 4;
}

inline Plan view_of_plan(const AttentionSizes& sizes, int* words) {
  Plan plan;
  plan.num_tiles = words;
  plan.num_merged = words + 1;
  plan.units = reinterpret_cast<Unit*>(words + 4);
  plan.shares = reinterpret_cast<Share*>(plan.units + sizes.num_units);
  plan.tiles = reinterpret_cast<Tile*>(plan.shares + sizes.num_blocks);
  plan.weights = reinterpret_cast<int*>(plan.tiles + sizes.num_tiles);
  plan.merged = reinterpret_cast<MergedToken*>(plan.weights + sizes.num_units + 1);
  return plan;
}

}  // namespace tercet::cuda
