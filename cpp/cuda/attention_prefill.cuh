// What the two kernels of prefill attention share.
#pragma once

#include "attention_plan.cuh"
#include "kernel.cuh"

namespace tercet::cuda {

struct PrefillArguments {
  AttentionRows rows;
  AttentionTensors tensors;
  Plan plan;
  int num_heads, num_kv_heads, group;
  int block_shift;  // log2 S
  int last_block;   // N - 1
  int max_context;
  float scale_log2;
  int window;
  float cap_log2;
};

inline bool is_limited(const PrefillArguments& args) { return args.window > 0 || args.cap_log2 > 0.0f; }

// The maximum of a row that has seen nothing. With a window a tile may hold nothing that a row sees, and its factor is
// to be 1 then, not 2^(inf - inf).
template <bool kLimited>
constexpr float kNoMaximum = kLimited ? -1e30f : -INFINITY;

// A tile of the query rows of one sequence's chunk and one KV head; row = token of the chunk * group + head of the
// group. Without a limit, which is a window or a cap, a kernel knows nothing of windows.
template <bool kLimited>
struct PrefillTile {
  int kv_head;
  int first_token;  // of the chunk, in the batch
  int before;       // tokens of context before the chunk
  int first_row, last_row;
  int end;  // past what the last row sees; 0 if the lengths are wrong
  const int* table;

  __device__ PrefillTile(const PrefillArguments& args, int index, int kv_head, int num_rows) : kv_head(kv_head) {
    const Tile tile = args.plan.tiles[index];
    const Span span = span_of(args.rows, args.max_context, tile.sequence);
    first_token = span.first_token;
    before = span.context - span.num_tokens;
    first_row = tile.index * num_rows;
    last_row = min(first_row + num_rows, span.num_tokens * args.group) - 1;
    end = max(0, before + last_row / args.group + 1);
    table = args.rows.block_tables + static_cast<int64_t>(tile.sequence) * args.rows.table_width;
  }

  // The first position that `row`, or the last row, sees.
  __device__ int first_seen(const PrefillArguments& args, int row) const {
    if (!kLimited || args.window == 0) return 0;
    return max(0, before + min(row, last_row) / args.group + 1 - args.window);
  }
};

// Launches the kernel that is made for Hopper and returns true, if this GPU and the head size are what it is for.
// num_blocks take the tiles in turn.
bool prefill_on_hopper(const AttentionShape& shape, const PrefillArguments& args, std::int64_t num_blocks,
                       Stream stream);

}  // namespace tercet::cuda
