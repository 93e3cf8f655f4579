// Paged attention of chunks, where attention_prefill_sm90a.cu does not serve: q [T, H, D], k_cache, v_cache [N, G, S,
// D] -> out [T, H, D]. Bound by products.
//
// The query rows of a sequence's chunk and one KV head are its tokens times the heads of the group, token by token, so
// that short chunks fill tiles too and K and V are read once for the group. A block of four warps takes a tile of 128
// rows (64 for D = 256), 32 a warp so that what a warp reads of K and V in shared memory serves two products, and walks
// the context from its start in tiles of 64 tokens (32 for D = 256), double buffered: cp.async brings the next from the
// pages while this one is worked on. Two blocks on an SM fill each other's gaps: one's products, the other's
// exponentials. A row's bits do not depend on the rows beside it, so neither on how a prompt is cut into chunks of more
// than one token.
#include "attention_prefill.cuh"
#include "dependent_launch.cuh"
#include "mma.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

template <int D>
struct Shape {
  static constexpr int kRowTiles = D > 128 ? 1 : 2;  // of 16 rows, a warp's
  static constexpr int kRows = kWarps * 16 * kRowTiles;
  static constexpr int kKeys = D > 128 ? 32 : 64;
  static constexpr int kQueryBytes = kRows * Row<2 * D>::kBytes;
  static constexpr int kTileBytes = kKeys * Row<2 * D>::kBytes;  // of K, and of V
  static constexpr int kBytes = kQueryBytes + 4 * kTileBytes;
};

// The keys and values of one sequence and KV head.
template <typename T, int D>
struct Context {
  const T* k_cache;
  const T* v_cache;
  const int* table;
  int kv_head, num_kv_heads;
  int block_shift, last_block;
  int end;  // tokens that are read

  static constexpr int kPieces = Row<2 * D>::kPieces;
  static constexpr int kCopies = Shape<D>::kKeys * kPieces / kThreads;

  __device__ int64_t block_of(int position) const {
    return min(static_cast<unsigned>(__ldg(table + (position >> block_shift))), static_cast<unsigned>(last_block));
  }

  // Elements from the cache's start to the row of `position`, which lies in `block`.
  __device__ int64_t offset_of(int64_t block, int position) const {
    return (((block * num_kv_heads + kv_head) << block_shift) + (position & ((1 << block_shift) - 1))) * D;
  }

  // Starts the copies of tokens [start, start + kKeys): K to `to`, V behind it.
  __device__ void load(int start, uint32_t to) const {
    const int thread = threadIdx.x;
    if (start + Shape<D>::kKeys <= end && Shape<D>::kKeys <= 1 << block_shift) {
      // Within a block of the cache, where rows follow each other.
      const int64_t from = offset_of(block_of(start), start) + thread * 8;
      const uint32_t lane = to + Row<2 * D>::offset(thread / kPieces, thread % kPieces);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        uint32_t place;
        if constexpr (kThreads % kPieces == 0) {
          place = Row<2 * D>::advance(lane, i * kThreads / kPieces, 0);
        } else {
          place = to + Row<2 * D>::offset((i * kThreads + thread) / kPieces, (i * kThreads + thread) % kPieces);
        }
        copy_async(place, k_cache + from + i * kThreads * 8);
        copy_async(place + Shape<D>::kTileBytes, v_cache + from + i * kThreads * 8);
      }
      return;
    }
#pragma unroll 4
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * kThreads + thread, row = at / kPieces, piece = at % kPieces, position = start + row;
      // From `end` on there may be anything, and 0 times NaN is NaN: zeros take its place.
      const bool present = position < end;
      const int64_t from = offset_of(present ? block_of(position) : 0, position) + piece * 8;
      const uint32_t place = to + Row<2 * D>::offset(row, piece);
      copy_async(place, k_cache + from, present);
      copy_async(place + Shape<D>::kTileBytes, v_cache + from, present);
    }
  }
};

template <typename T, int D, bool kLimited>
__global__ void __launch_bounds__(kThreads, 2) prefill_kernel(const __grid_constant__ PrefillArguments args) {
  using S = Shape<D>;
  constexpr int kRowTiles = S::kRowTiles, kKeyTiles = S::kKeys / 8;
  extern __shared__ __align__(1024) unsigned char shared[];
  wait_for_kernel_before();
  let_next_kernel_start();
  if (static_cast<int>(blockIdx.y) >= *args.plan.num_tiles) return;
  const PrefillTile<kLimited> tile(args, blockIdx.y, blockIdx.x, S::kRows);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, matrix = lane / 8;
  const int group = args.group, first_row = tile.first_row, last_row = tile.last_row, before = tile.before;
  const Context<T, D> context{static_cast<const T*>(args.tensors.k_cache),
                              static_cast<const T*>(args.tensors.v_cache),
                              tile.table,
                              tile.kv_head,
                              args.num_kv_heads,
                              args.block_shift,
                              args.last_block,
                              tile.end};

  const uint32_t q_tile = shared_address(shared), key_tiles = q_tile + S::kQueryBytes;
  const auto tiles_of = [&](int step) { return key_tiles + step % 2 * 2 * S::kTileBytes; };
  {
    constexpr int kPieces = Row<2 * D>::kPieces;
    const auto* q = static_cast<const T*>(args.tensors.q) + tile.first_token * args.tensors.q_token_stride +
                    tile.kv_head * group * args.tensors.q_head_stride;
#pragma unroll 4
    for (int i = 0; i < S::kRows * kPieces / kThreads; ++i) {
      const int at = i * kThreads + threadIdx.x, piece = at % kPieces;
      const int row = min(first_row + at / kPieces, last_row);  // past the end: anything finite
      const int token = row / group, head = row - token * group;
      copy_async(q_tile + Row<2 * D>::offset(at / kPieces, piece),
                 q + token * args.tensors.q_token_stride + head * args.tensors.q_head_stride + piece * 8, true);
    }
  }
  const int first_step = tile.first_seen(args, first_row) / S::kKeys;
  context.load(first_step * S::kKeys, tiles_of(first_step));
  commit_copies();

  const int warp_row = warp * 16 * kRowTiles, row = warp_row + lane / 4;
  const uint32_t first_queries = q_tile + Row<2 * D>::offset(warp_row + matrix % 2 * 8 + lane % 8, matrix / 2);
  // Rows of this lane: [row tile][half] is warp_row + 16 * row tile + 8 * half; it sees the positions below `sees`, and
  // those from `from` on.
  int sees[kRowTiles][2], from[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sees[m][half] = before + min(first_row + row + m * 16 + half * 8, last_row) / group + 1;
      from[m][half] = tile.first_seen(args, first_row + row + m * 16 + half * 8);
    }
  }
  const int all_see = before + min(first_row + warp_row, last_row) / group + 1;  // of the warp's rows, the least
  const int some_see = before + min(first_row + warp_row + 16 * kRowTiles - 1, last_row) / group + 1;
  const int some_from = tile.first_seen(args, first_row + warp_row);
  const int all_from = tile.first_seen(args, first_row + warp_row + 16 * kRowTiles - 1);

  float maximum[kRowTiles][2], sum[kRowTiles][2], o[kRowTiles][D / 8][4];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum[m][half] = kNoMaximum<kLimited>;
      sum[m][half] = 0.0f;
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][n][i] = 0.0f;
    }
  }

  const int num_steps = (tile.end + S::kKeys - 1) / S::kKeys;
  for (int step = first_step; step < num_steps; ++step) {
    const int start = step * S::kKeys;
    if (step + 1 < num_steps) context.load(start + S::kKeys, tiles_of(step + 1));
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    if (start < some_see && (!kLimited || start + S::kKeys > some_from)) {
      const uint32_t first_keys = tiles_of(step) + Row<2 * D>::offset(matrix / 2 * 8 + lane % 8, matrix % 2);
      const uint32_t first_values =
          tiles_of(step) + S::kTileBytes + Row<2 * D>::offset(matrix % 2 * 8 + lane % 8, matrix / 2);
      float scores[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        uint32_t q[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          load_matrices(q[m],
                        q_tile + Row<2 * D>::offset(warp_row + m * 16 + matrix % 2 * 8 + lane % 8, k * 2 + matrix / 2));
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles / 2; ++n) {
          uint32_t keys[4];
          load_matrices(keys, Row<2 * D>::advance(first_keys, n * 16, k * 2));
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            multiply_add<T>(scores[m][n * 2], q[m], keys[0], keys[1]);
            multiply_add<T>(scores[m][n * 2 + 1], q[m], keys[2], keys[3]);
          }
        }
      }
      if (kLimited && args.cap_log2 > 0.0f) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[m][n][i] = tanh_of_power(scores[m][n][i] * args.cap_log2);
          }
        }
      }
      if (start + S::kKeys > all_see || (kLimited && start < all_from)) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int position = start + n * 8 + lane % 4 * 2 + i % 2;
              if (position >= sees[m][i / 2] || (kLimited && position < from[m][i / 2])) scores[m][n][i] = -INFINITY;
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float here = -INFINITY;
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
            here = fmaxf(here, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
          }
          const float raised = fmaxf(maximum[m][half], row_max(here) * args.scale_log2);
          factor[half] = power_of_2(maximum[m][half] - raised);
          maximum[m][half] = raised;
          float added = 0.0f;
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; ++i) {
              scores[m][n][i] = power_of_2(fmaf(scores[m][n][i], args.scale_log2, -raised));
              added += scores[m][n][i];
            }
          }
          sum[m][half] = sum[m][half] * factor[half] + added;
        }
        // Most tiles do not raise a maximum; times 1 changes nothing.
        if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
          for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[m][n][i] *= factor[i / 2];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kKeyTiles / 2; ++k) {
        uint32_t weights[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float (&pair)[4] = scores[m][k * 2 + i / 2];
            weights[m][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
          }
        }
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t values[4];
          load_matrices_transposed(values, Row<2 * D>::advance(first_values, k * 16, n * 2));
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            multiply_add<T>(o[m][n * 2], weights[m], values[0], values[1]);
            multiply_add<T>(o[m][n * 2 + 1], weights[m], values[2], values[3]);
          }
        }
      }
    }
    __syncthreads();  // the load after next overwrites what was read here
  }

#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = 1.0f / row_sum(sum[m][half]);
      const int query_row = first_row + row + m * 16 + half * 8;
      if (query_row > last_row) continue;
      const int token = query_row / group, head = tile.kv_head * group + query_row - token * group;
      T* to = static_cast<T*>(args.tensors.out) +
              (static_cast<int64_t>(tile.first_token + token) * args.num_heads + head) * D + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + n * 8) = pack<T>(o[m][n][half * 2] * scale, o[m][n][half * 2 + 1] * scale);
      }
    }
  }
}

template <typename T, int D, bool kLimited>
void launch(const PrefillArguments& args, std::int64_t num_tiles, Stream stream) {
  constexpr int kBytes = Shape<D>::kBytes;
  static std::atomic<std::uint64_t> allowed{0};
  const auto kernel = prefill_kernel<T, D, kLimited>;
  allow_shared_bytes(kernel, kBytes, allowed, "attention_prefill");
  const dim3 blocks(args.num_kv_heads, static_cast<unsigned>(num_tiles));
  launch_behind(kernel, blocks, kThreads, kBytes, stream, args, "attention_prefill");
}

}  // namespace

void attention_prefill(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                       const AttentionSizes& sizes, int* plan, Stream stream) {
  if (sizes.num_tiles == 0) return;
  const PrefillArguments args{rows,
                              tensors,
                              view_of_plan(sizes, plan),
                              shape.num_heads,
                              shape.num_kv_heads,
                              group_of(shape),
                              log2_of(shape.block_size),
                              static_cast<int>(shape.num_blocks) - 1,
                              rows.table_width * shape.block_size,
                              scale_log2(tensors),
                              shape.window,
                              cap_log2(tensors)};
  if (prefill_on_hopper(shape, args, sizes.num_tile_blocks, stream)) return;
  with_heads(shape, [&](auto zero, auto dim) {
    using T = decltype(zero);
    const auto launch_for = is_limited(args) ? launch<T, dim.value, true> : launch<T, dim.value, false>;
    launch_for(args, sizes.num_tiles, stream);
  });
}

}  // namespace tercet::cuda
