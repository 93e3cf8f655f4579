// y [T, N] = x [T, K] W [N, K]^T for T <= 16: every weight is read once, and reading them is all that takes time.
//
// W is cut into tiles of 128 rows, these along K into chunks of 64 columns, and all chunks, in order, into runs of
// equal length: a thread block, at most one on each multiprocessor, has one run. In it one thread has the copy engine
// bring chunks of W and x to a ring of stages, and a warpgroup multiplies them: rows of W are the rows of the product.
//
// A run may begin and end within a tile. The block with a tile's first chunk finishes it, at the end of its run; the
// blocks that have the rest began with it, and have left their sums in global memory. It adds them in their order. So
// the bits of an output depend on the shape of W and the number of multiprocessors, not on T or on other rows of x.
#include <algorithm>

#include "bulk_copy.cuh"
#include "dependent_launch.cuh"
#include "linear_skinny.h"
#include "silu.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 4;                         // of the warpgroup that multiplies
constexpr int kMultiplyThreads = kWarps * kWarp;  // one warp more copies
constexpr int kThreads = kMultiplyThreads + kWarp;
constexpr int kHalf = 64;  // rows of a product
constexpr int kRows = 2 * kHalf;
constexpr int kChunk = kPanelElements;
// Two thirds of what a multiprocessor has. With half, so that the next product's blocks fit beside this one's, too
// little is under way at a time.
constexpr int kSharedBytes = 150 << 10;
// Of a tile: more take longer to be added than they save.
constexpr int kMostParts = 4;

struct Arguments {
  TensorMap weight, x;
  const void* bias;  // or null
  void* out;
  uint4* left;      // [blocks][rows of 16 bytes][kMultiplyThreads], zero between launches
  int num_rows;     // of x
  int num_outputs;  // of a row of out
  int num_tiles;
  int tile_chunks;
  bool gated, wide;

  // Of the run of `block`, or past the run of the one before.
  __device__ int first_chunk(int block) const {
    return static_cast<int>(static_cast<std::int64_t>(num_tiles) * tile_chunks * block / gridDim.x);
  }
};

// Of a block's shared memory, for kTokens columns of the product.
template <int kTokens>
struct Layout {
  static constexpr int kWeightBytes = kRows * kPanelRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kPanelRowBytes;
  static constexpr int kBarrierBytes = 8;
  static constexpr int kStages = kSharedBytes / (kStageBytes + 2 * kBarrierBytes);
  static constexpr int kBytes = kStages * (kStageBytes + 2 * kBarrierBytes);
};

// The stages, and the one that is next.
template <int kTokens>
struct Ring {
  using L = Layout<kTokens>;
  uint32_t base;
  int at = 0, parity = 0;

  __device__ explicit Ring(uint32_t base) : base(base) {}
  __device__ uint32_t stage() const { return base + at * L::kStageBytes; }
  __device__ uint32_t full(int i) const { return base + L::kStages * L::kStageBytes + i * L::kBarrierBytes; }
  __device__ uint32_t empty(int i) const { return full(L::kStages + i); }
  __device__ void advance() {
    if (++at == L::kStages) {
      at = 0;
      parity ^= 1;
    }
  }
};

// By one thread. Weights depend on no other kernel: the first are on their way before the one before has ended.
template <int kTokens>
__device__ void copy(const Arguments& args, Ring<kTokens> ring) {
  using L = Layout<kTokens>;
  const uint64_t policy = read_once_policy();
  const int first = args.first_chunk(blockIdx.x), last = args.first_chunk(blockIdx.x + 1);
  // A tile is two runs of rows: neighbours, or the gates and what goes with them.
  const int rows_apart = args.gated ? args.num_outputs : kHalf, rows_of_tile = args.gated ? kHalf : kRows;
  const auto copy_weights = [&](int i, int at) {
    const uint32_t to = ring.base + at * L::kStageBytes, full = ring.full(at);
    const int row = i / args.tile_chunks * rows_of_tile, column = i % args.tile_chunks * kChunk;
    arrive_expecting(full, L::kStageBytes);
    copy_tile(to, args.weight, row, column, full, policy);
    copy_tile(to + L::kWeightBytes / 2, args.weight, row + rows_apart, column, full, policy);
  };
  const int ahead = min(last, first + L::kStages);
  for (int i = first; i < ahead; ++i) copy_weights(i, i - first);
  wait_for_kernel_before();
  for (int i = first; i < last; ++i, ring.advance()) {
    if (i >= ahead) {
      wait_barrier(ring.empty(ring.at), ring.parity ^ 1);
      copy_weights(i, ring.at);
    }
    copy_tile(ring.stage() + L::kWeightBytes, args.x, 0, i % args.tile_chunks * kChunk, ring.full(ring.at));
  }
  // Not before: what the next one copies ahead should fill the time in which this one ends.
  let_next_kernel_start();
}

// What a thread has of a tile, in both halves: of its warp's 16 rows lane / 4 and 8 more, of every 8 tokens
// 2 * (lane % 4) and 1 more.
template <int kTokens>
using Sums = float[2][kTokens / 8][4];

// sum [64, 8 or 16] = or, if `add`, += a [64, 16] b [8 or 16, 16]^T, both in shared memory.
template <typename T>
__device__ void multiply_tiles(float (&sum)[1][4], uint64_t a, uint64_t b, bool add);
template <typename T>
__device__ void multiply_tiles(float (&sum)[2][4], uint64_t a, uint64_t b, bool add);

#define TERCET_PRODUCTS(T, name)                                                                                    \
  template <>                                                                                                       \
  __device__ inline void multiply_tiles<T>(float (&sum)[1][4], uint64_t a, uint64_t b, bool add) {                  \
    asm volatile(                                                                                                   \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"                                                             \
        "wgmma.mma_async.sync.aligned.m64n8k16.f32." name "." name " {%0, %1, %2, %3}, %4, %5, add, 1, 1, 0, 0;\n}" \
        : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3])                                        \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                              \
  }                                                                                                                 \
  template <>                                                                                                       \
  __device__ inline void multiply_tiles<T>(float (&sum)[2][4], uint64_t a, uint64_t b, bool add) {                  \
    asm volatile(                                                                                                   \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %10, 0;\n"                                                            \
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." name "." name                                                 \
        " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, 0, 0;\n}"                                            \
        : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]), "+f"(sum[1][1]),     \
          "+f"(sum[1][2]), "+f"(sum[1][3])                                                                          \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                              \
  }

TERCET_PRODUCTS(__nv_bfloat16, "bf16")
TERCET_PRODUCTS(__half, "f16")

#undef TERCET_PRODUCTS

// sums = or, if `add`, += W times x for one chunk. When it returns the stage has been read.
template <typename T, int kTokens>
__device__ void multiply_chunk(Sums<kTokens>& sums, uint32_t stage, bool add) {
  const uint64_t x = tile_descriptor(stage + Layout<kTokens>::kWeightBytes, 0);
  begin_products();
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t weights = tile_descriptor(stage + half * kHalf * kPanelRowBytes, 0);
      multiply_tiles<T>(sums[half], advance(weights, k * 32), advance(x, k * 32), add || k > 0);
    }
  }
  commit_products();
  wait_products<0>(sums[0]);
  wait_products<0>(sums[1]);
}

// Pair i of what a thread has.
template <int kTokens>
__device__ float* pair_of(Sums<kTokens>& sums, int i) {
  return &sums[i / (kTokens / 4)][i / 2 % (kTokens / 8)][i % 2 * 2];
}

// For the block that finishes the tile. Each 8 bytes carry a flag that says they are there: a fence would wait for all
// that is under way.
template <int kTokens>
__device__ void leave(Sums<kTokens>& sums, uint4* to) {
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const float* pair = pair_of<kTokens>(sums, i);
    asm volatile("st.volatile.global.v4.b32 [%0], {%1, %3, %2, %3};" ::"l"(to + i * kMultiplyThreads + threadIdx.x),
                 "r"(__float_as_uint(pair[0])), "r"(__float_as_uint(pair[1])), "r"(1)
                 : "memory");
  }
}

// sums += what the same thread of the blocks from `block` to `last` left, in their order. It is zero again afterwards.
template <int kTokens>
__device__ void add_left(Sums<kTokens>& sums, uint4* left, int block, int last) {
  constexpr int kPairs = kTokens / 2, kBlocksAtOnce = 16 / kPairs;
  for (; block < last; block += kBlocksAtOnce) {
    uint4 got[kBlocksAtOnce][kPairs];
    const auto for_each = [&](auto&& f) {
#pragma unroll
      for (int b = 0; b < kBlocksAtOnce; ++b) {
        if (block + b >= last) break;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          f(got[b][i], left + ((block + b) * kPairs + i) * kMultiplyThreads + threadIdx.x, i);
        }
      }
    };
    bool is_there;
    do {
      is_there = true;
      for_each([](uint4& to, const uint4* from, int) {
        asm volatile("ld.volatile.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                     : "l"(from)
                     : "memory");
      });
      for_each([&](const uint4& it, const uint4*, int) { is_there = is_there && it.y != 0 && it.w != 0; });
    } while (!__all_sync(0xffffffffu, is_there));
    for_each([&](const uint4& it, uint4* from, int i) {
      asm volatile("st.volatile.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(from), "r"(0) : "memory");
      float* pair = pair_of<kTokens>(sums, i);
      pair[0] += __uint_as_float(it.x);
      pair[1] += __uint_as_float(it.z);
    });
  }
}

template <typename T, typename Out, int kTokens>
__device__ void store(const Arguments& args, const Sums<kTokens>& sums, int tile) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const T* bias = static_cast<const T*>(args.bias);
  Out* out = static_cast<Out*>(args.out);
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    const int row = warp * 16 + eight * 8 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = args.gated ? tile * kHalf + row : tile * kRows + half * kHalf + row;
      if (output >= args.num_outputs || (args.gated && half == 1)) break;
      const float more = bias != nullptr ? widen(bias[output]) : 0.0f;
      const float more_up = bias != nullptr && args.gated ? widen(bias[args.num_outputs + output]) : 0.0f;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int token = n * 8 + lane % 4 * 2 + i;
          float y = sums[half][n][eight * 2 + i] + more;
          if (args.gated) y = silu_times(y, sums[1][n][eight * 2 + i] + more_up);
          if (token < args.num_rows) out[static_cast<std::int64_t>(token) * args.num_outputs + output] = narrow<Out>(y);
        }
      }
    }
  }
}

template <typename T, int kTokens>
__device__ void multiply(const Arguments& args, Ring<kTokens> ring) {
  const int first = args.first_chunk(blockIdx.x), last = args.first_chunk(blockIdx.x + 1);
  for (int i = first; i < last;) {
    const int tile = i / args.tile_chunks, tile_first = tile * args.tile_chunks,
              tile_last = tile_first + args.tile_chunks;
    const bool is_first = i == tile_first;
    Sums<kTokens> sums;
    bool add = false;
    for (; i < min(last, tile_last); ++i, ring.advance()) {
      wait_barrier(ring.full(ring.at), ring.parity);
      multiply_chunk<T, kTokens>(sums, ring.stage(), add);
      add = true;
      if (threadIdx.x % kWarp == 0) arrive(ring.empty(ring.at));
    }
    if (!is_first) {
      leave<kTokens>(sums, args.left + blockIdx.x * (kTokens / 2) * kMultiplyThreads);
      continue;
    }
    int past = blockIdx.x + 1;  // the blocks that have the rest of the tile
    while (args.first_chunk(past) < tile_last) ++past;
    add_left<kTokens>(sums, args.left, blockIdx.x + 1, past);
    if (args.wide) {
      store<T, float, kTokens>(args, sums, tile);
    } else {
      store<T, T, kTokens>(args, sums, tile);
    }
  }
}

template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads) linear_skinny_kernel(const __grid_constant__ Arguments args) {
  using L = Layout<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring<kTokens> ring(shared_address(shared));
  if (threadIdx.x == kMultiplyThreads) {
    for (int i = 0; i < L::kStages; ++i) {
      init_barrier(ring.full(i), 1);
      init_barrier(ring.empty(i), kWarps);
    }
    show_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kMultiplyThreads) {
    multiply<T, kTokens>(args, ring);
  } else if (threadIdx.x == kMultiplyThreads) {
    copy<kTokens>(args, ring);
  }
}

template <typename T, int kTokens>
void launch(const Arguments& args, int num_blocks, Stream stream) {
  constexpr const char* kName = "linear_skinny";
  static std::atomic<std::uint64_t> allowed{0};
  allow_shared_bytes(linear_skinny_kernel<T, kTokens>, Layout<kTokens>::kBytes, allowed, kName);
  launch_behind(linear_skinny_kernel<T, kTokens>, dim3(static_cast<unsigned>(num_blocks)), kThreads,
                Layout<kTokens>::kBytes, stream, args, kName);
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

SkinnyLinear::SkinnyLinear(Dtype dtype, const void* weight, std::int64_t row_stride, int num_outputs, int depth,
                           const void* bias, void* left, int num_multiprocessors)
    : dtype_(dtype),
      weight_(tensor_map(weight, num_outputs, depth, row_stride, kHalf)),
      bias_(bias),
      left_(left),
      num_outputs_(num_outputs),
      depth_(depth),
      num_multiprocessors_(num_multiprocessors) {
  if (dtype == Dtype::f32) throw std::invalid_argument("a linear_skinny weight must be f16 or bf16");
}

std::int64_t SkinnyLinear::left_bytes(int num_multiprocessors) {
  return std::int64_t{num_multiprocessors} * (kMaxSkinnyRows / 2) * kMultiplyThreads * sizeof(uint4);
}

void SkinnyLinear::multiply(const void* x, std::int64_t x_stride, int num_rows, void* out, bool wide, bool gated,
                            Stream stream) const {
  if (num_rows == 0) return;
  if (num_rows > kMaxSkinnyRows) throw std::invalid_argument("linear_skinny takes 16 rows at most");
  Arguments args{};
  args.weight = weight_;
  args.bias = bias_;
  args.out = out;
  args.left = static_cast<uint4*>(left_);
  args.num_rows = num_rows;
  args.num_outputs = gated ? num_outputs_ / 2 : num_outputs_;
  args.num_tiles = ceil_div(args.num_outputs, gated ? kHalf : kRows);
  args.tile_chunks = ceil_div(depth_, kChunk);
  args.gated = gated;
  args.wide = wide;
  const int num_blocks = std::min(args.num_tiles * std::min(args.tile_chunks, kMostParts), num_multiprocessors_);
  const auto launch_for = [&](auto zero, auto tokens) {
    args.x = tensor_map(x, num_rows, depth_, x_stride, tokens);
    launch<decltype(zero), decltype(tokens)::value>(args, num_blocks, stream);
  };
  const auto launch_with = [&](auto zero) {
    if (num_rows <= 8) return launch_for(zero, std::integral_constant<int, 8>{});
    launch_for(zero, std::integral_constant<int, 16>{});
  };
  if (dtype_ == Dtype::bf16) {
    launch_with(__nv_bfloat16{});
  } else {
    launch_with(__half{});
  }
}

}  // namespace tercet::cuda
