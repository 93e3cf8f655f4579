// The plan of a step, from query_starts [B + 1] and context_lens [B]: one block of 1024 threads, launched once for all
// layers. A thread measures a sequence, a scan over the block gives everyone its place, a warp writes a sequence's
// entries. The host knows none of this, so that steps can follow each other without it.
#include <algorithm>

#include "attention_plan.cuh"
#include "dependent_launch.cuh"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 1024;
// CUDA blocks of decode for each that the GPU has room for: those that come later even out what others took longer for.
constexpr int kRounds = 2;
// What a unit costs beside its tokens, in tokens.
constexpr int kUnitWeight = 32;
// Sequences with more than one token that have a block for their last tile each. More share blocks: a captured step
// could have many, and idle blocks take time.
constexpr int kPartTiles = 16;
// What the kernels of D = 256, and the others, may want of a multiprocessor's shared memory.
constexpr int kMostSharedBytes = 150 << 10;
constexpr int kUsualSharedBytes = 98 << 10;

struct PlanArguments {
  AttentionRows rows;
  Plan plan;
  int num_units, num_tiles, num_merged;  // that there is room for
  int num_blocks;
  int parts;
  int group;
  int rows_of_tile;
  int max_context;
  int window;
  bool all_decode;
};

struct Amounts {
  int units, weight, tiles, merged;
};

__device__ Amounts operator+(Amounts a, Amounts b) {
  return {a.units + b.units, a.weight + b.weight, a.tiles + b.tiles, a.merged + b.merged};
}

__device__ Amounts shift_up(Amounts x, int lanes) {
  constexpr unsigned kAll = 0xffffffffu;
  return {__shfl_up_sync(kAll, x.units, lanes), __shfl_up_sync(kAll, x.weight, lanes),
          __shfl_up_sync(kAll, x.tiles, lanes), __shfl_up_sync(kAll, x.merged, lanes)};
}

// The sum of `mine` over the threads up to this one.
__device__ Amounts scan_block(Amounts mine, Amounts* of_warps) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const Amounts lower = shift_up(mine, lanes);
    if (lane >= lanes) mine = mine + lower;
  }
  if (lane == kWarp - 1) of_warps[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    Amounts sum = of_warps[lane];
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      const Amounts lower = shift_up(sum, lanes);
      if (lane >= lanes) sum = sum + lower;
    }
    of_warps[lane] = sum;
  }
  __syncthreads();
  return warp == 0 ? mine : mine + of_warps[warp - 1];
}

__device__ int weight_of(const Reach& reach, int context) {
  return context - reach.first_token + kUnitWeight * reach.num_chunks;
}

// Each block begins with the first item that has its share of the weight before it. Parts of a unit weigh the same.
__device__ void share_out(const PlanArguments& args, int num_units) {
  const Plan& plan = args.plan;
  const int64_t parts = args.parts, all = plan.weights[num_units] * parts;
  for (int block = threadIdx.x; block <= args.num_blocks; block += kThreads) {
    const int64_t target = (all * block + args.num_blocks - 1) / args.num_blocks;
    int low = 0, high = num_units;  // the last unit with at most the target before it
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (plan.weights[middle] * parts <= target) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    int64_t item = low * parts;
    if (low < num_units) {
      const int64_t weight = plan.weights[low + 1] - plan.weights[low];
      item += (target - plan.weights[low] * parts + weight - 1) / weight;
    }
    if (block > 0) plan.shares[block - 1].end = static_cast<int>(item);
    if (block == args.num_blocks) continue;
    Share& share = plan.shares[block];
    share.begin = static_cast<int>(item);
    share.unit_index = static_cast<int>(item / parts);
    share.part = static_cast<int>(item % parts);
    if (share.unit_index < num_units) share.unit = plan.units[share.unit_index];
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(PlanArguments args) {
  __shared__ Amounts of_warps[kWarp];
  __shared__ Amounts before[kThreads];
  __shared__ Amounts carried;
  const int thread = threadIdx.x, lane = thread % kWarp;
  const Plan& plan = args.plan;
  wait_for_kernel_before();
  let_next_kernel_start();
  Amounts total{};
  for (int base = 0; base < args.rows.num_sequences; base += kThreads) {
    const int sequence = base + thread;
    Amounts mine{};
    if (sequence < args.rows.num_sequences) {
      const Span span = span_of(args.rows, args.max_context, sequence);
      if (args.all_decode || span.num_tokens == 1) {
        for (int i = 0; i < span.num_tokens; ++i) {
          const int context = max(0, span.context - span.num_tokens + 1 + i);
          const Reach reach = reach_of(args.window, context);
          mine.units += reach.num_chunks;
          mine.weight += weight_of(reach, context);
          mine.merged += reach.num_chunks > 1;
        }
      } else {
        mine.tiles = (span.num_tokens * args.group + args.rows_of_tile - 1) / args.rows_of_tile;
      }
    }
    const Amounts through = total + scan_block(mine, of_warps);
    before[thread] = {through.units - mine.units, through.weight - mine.weight, through.tiles - mine.tiles,
                      through.merged - mine.merged};
    if (thread == kThreads - 1) carried = through;
    __syncthreads();
    total = carried;
    const int here = min(kThreads, args.rows.num_sequences - base);
    for (int i = thread / kWarp; i < here; i += kThreads / kWarp) {
      const Span span = span_of(args.rows, args.max_context, base + i);
      if (args.all_decode || span.num_tokens == 1) {
        int unit = before[i].units, weight = before[i].weight, merged = before[i].merged;
        for (int j = 0; j < span.num_tokens; ++j) {
          const int context = max(0, span.context - span.num_tokens + 1 + j);
          const Reach reach = reach_of(args.window, context);
          const int chunks = reach.num_chunks;
          for (int k = lane; k < chunks; k += kWarp) {
            const int at = unit + k, chunk = reach.first_chunk + k;
            const int seen_before = max(0, chunk * kChunk - reach.first_token);
            if (at < args.num_units) plan.units[at] = {span.first_token + j, base + i, context, chunk};
            if (at <= args.num_units) plan.weights[at] = weight + seen_before + k * kUnitWeight;
          }
          if (chunks > 1 && lane == 0 && merged < args.num_merged) {
            plan.merged[merged] = {span.first_token + j, unit, min(chunks, args.num_units - unit)};
          }
          merged += chunks > 1;
          unit += chunks;
          weight += weight_of(reach, context);
        }
      } else {
        const int tiles = (span.num_tokens * args.group + args.rows_of_tile - 1) / args.rows_of_tile;
        // The last tile sees most and so should start first.
        for (int tile = lane; tile < tiles; tile += kWarp) {
          const int at = before[i].tiles + tile;
          if (at < args.num_tiles) plan.tiles[at] = {base + i, tiles - 1 - tile};
        }
      }
    }
    __syncthreads();
  }
  const int num_units = min(total.units, args.num_units);
  if (thread == 0) {
    *plan.num_tiles = min(total.tiles, args.num_tiles);
    *plan.num_merged = min(total.merged, args.num_merged);
    if (total.units == num_units) plan.weights[num_units] = total.weight;
  }
  __syncthreads();
  share_out(args, num_units);
}

}  // namespace

AttentionSizes attention_sizes(const AttentionShape& shape, const AttentionRows& rows, const AttentionBounds& bounds,
                               int num_multiprocessors) {
  const std::int64_t max_context = static_cast<std::int64_t>(rows.table_width) * shape.block_size;
  std::int64_t chunks = (max_context + kChunk - 1) / kChunk;
  // However a window lies.
  if (shape.window > 0) chunks = std::min<std::int64_t>(chunks, (shape.window - 1 + kChunk - 1) / kChunk + 1);
  const int parts = parts_of(shape);
  AttentionSizes sizes{};
  sizes.all_decode = bounds.num_chunked < 0 ? rows.num_tokens <= rows.num_sequences : bounds.num_chunked == 0;
  sizes.one_each = !sizes.all_decode || bounds.num_chunked == 0;
  sizes.num_merged = sizes.all_decode ? rows.num_tokens : rows.num_sequences;
  const std::int64_t num_decoding = std::min(rows.num_sequences, rows.num_tokens);
  sizes.num_units = num_decoding * chunks;
  sizes.merges = chunks > 1 && num_decoding > 0;
  if (bounds.total_context >= 0) {
    sizes.num_units = std::min(sizes.num_units, bounds.total_context / kChunk + num_decoding);
    sizes.merges = sizes.merges && bounds.total_context > kChunk;
  }
  if (!sizes.all_decode) {
    int chunked = std::min(rows.num_sequences, rows.num_tokens / 2);
    if (bounds.num_chunked >= 0) chunked = std::min(chunked, bounds.num_chunked);
    const std::int64_t full = static_cast<std::int64_t>(rows.num_tokens) * group_of(shape) / tile_rows(shape.head_dim);
    sizes.num_tiles = full + chunked;
    sizes.num_tile_blocks = full + std::min(chunked, kPartTiles);
  }
  sizes.num_blocks = std::max<std::int64_t>(
      1,
      std::min<std::int64_t>(sizes.num_units * parts, kRounds * decode_blocks(shape.head_dim) * num_multiprocessors));
  sizes.num_merge_blocks =
      std::min<std::int64_t>(sizes.num_merged * shape.num_heads, kMergeBlocks * num_multiprocessors);
  sizes.plan_words = words_of_plan(sizes, std::max(rows.num_tokens, rows.num_sequences));
  sizes.state_words = sizes.num_units * shape.num_heads * (shape.head_dim + 2);
  return sizes;
}

bool attention_has_kernels(const AttentionShape& shape) {
  const int dim = shape.head_dim, slots = shape.block_size;
  int device = 0, shared_bytes = 0, major = 0;
  check(cudaGetDevice(&device), "attention");
  check(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "attention");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "attention");
  if (shared_bytes < (dim > 128 ? kMostSharedBytes : kUsualSharedBytes)) return false;
  if (shape.dtype == Dtype::f32 || slots < kMinSlots || (slots & (slots - 1)) != 0) return false;
  if (shape.cache_dtype == Dtype::e4m3) return major == 9 && (dim == 64 || dim == 128);
  return dim == 64 || dim == 96 || dim == 128 || dim == 256;
}

void plan_attention(const AttentionShape& shape, const AttentionRows& rows, const AttentionSizes& sizes, int* plan,
                    Stream stream) {
  PlanArguments args{rows,
                     view_of_plan(sizes, plan),
                     static_cast<int>(sizes.num_units),
                     static_cast<int>(sizes.num_tiles),
                     static_cast<int>(sizes.num_merged),
                     static_cast<int>(sizes.num_blocks),
                     parts_of(shape),
                     group_of(shape),
                     tile_rows(shape.head_dim),
                     rows.table_width * shape.block_size,
                     shape.window,
                     sizes.all_decode};
  launch_behind(plan_kernel, dim3(1), kThreads, 0, stream, args, "plan_attention");
}

}  // namespace tercet::cuda
