// y [T, N] = x [T, K] W [N, K]^T for T <= 64: every weight is read once, and reading them is all that takes time.
//
// A cluster of thread blocks makes a tile of kRows outputs for all T rows of x, each block for its part of K; clusters
// stay and take tiles in turn. In a block one thread has the copy engine bring chunks of W and x to a ring of stages,
// and four warps multiply them by mma.sync: a warp has 16 * kTiles rows of W, and all T as the columns of the product.
// What a block has of a tile it sends to the blocks of its cluster, each of which finishes a share of the outputs: it
// adds up what came for them, in the order of the blocks. By then it is multiplying the next tile.
//
// So an output is a chain over k for each block, and the sum of these: its bits depend on neither T nor other rows.
#include <algorithm>

#include "bulk_copy.cuh"
#include "dependent_launch.cuh"
#include "linear_skinny.h"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 4;                         // that multiply
constexpr int kMultiplyThreads = kWarps * kWarp;  // one warp more copies
constexpr int kThreads = kMultiplyThreads + kWarp;
constexpr int kTiles = 2;  // of 16 rows of W, for each warp
constexpr int kRows = kWarps * 16 * kTiles;
constexpr int kHalf = kRows / 2;
constexpr int kChunk = kPanelElements;  // of K
constexpr int kMaxSplits = 8;
constexpr int kMostSharedBytes = 227 << 10;  // that a block may have
// What it takes: the next product's blocks copy weights before this one's have ended.
constexpr int kSharedBytes = 113 << 10;
constexpr const char* kName = "linear_skinny";

struct Arguments {
  TensorMap weight, x;
  const void* bias;  // or null
  void* out;
  int num_rows;     // of x
  int num_outputs;  // of a row of out
  int num_tiles;
  int num_chunks;  // of a block's part of K
  int num_splits;  // parts of K, blocks of a cluster
  int share;       // rows of each half of a tile that a block finishes
  bool gated, wide;
};

// Of a block's shared memory, for kTokens columns of the product.
template <int kTokens>
struct Layout {
  static constexpr int kWeightBytes = kRows * kPanelRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kPanelRowBytes;
  // Sums pass between blocks some tokens at a time, through two buffers in turn: [source][half][share][kPass] floats.
  static constexpr int kPass = kTokens < 32 ? kTokens : 32;
  static constexpr int kSumBytes = kRows * kPass * 4;
  static constexpr int kBarrierBytes = 8;
  static constexpr int kStages = (kSharedBytes - 2 * (kSumBytes + kBarrierBytes)) / (kStageBytes + 2 * kBarrierBytes);
  static constexpr int kBytes = kStages * (kStageBytes + 2 * kBarrierBytes) + 2 * (kSumBytes + kBarrierBytes);
};

// Addresses in a block's shared memory.
template <typename L>
struct Places {
  uint32_t stages, sums_at, barriers;

  __device__ explicit Places(uint32_t base)
      : stages(base), sums_at(stages + L::kStages * L::kStageBytes), barriers(sums_at + 2 * L::kSumBytes) {}
  __device__ uint32_t stage(int i) const { return stages + i * L::kStageBytes; }
  __device__ uint32_t sums(int buffer) const { return sums_at + buffer * L::kSumBytes; }
  __device__ uint32_t full(int i) const { return barriers + i * L::kBarrierBytes; }
  __device__ uint32_t empty(int i) const { return full(L::kStages + i); }
  __device__ uint32_t summed(int buffer) const { return full(2 * L::kStages + buffer); }
};

// A place in a ring of kSize, and whether it came round an odd number of times.
template <int kSize>
struct Turn {
  int at = 0, parity = 0;

  __device__ void advance() {
    if (++at == kSize) {
      at = 0;
      parity ^= 1;
    }
  }
};

// The tiles of this cluster.
struct Tiles {
  int first, step, count;

  __device__ explicit Tiles(const Arguments& args)
      : first(blockIdx.x / args.num_splits), step(gridDim.x / args.num_splits) {
    count = first < args.num_tiles ? (args.num_tiles - first - 1) / step + 1 : 0;
  }
};

// By one thread. Weights depend on no other kernel: the first are on their way before the one before has ended.
template <typename L>
__device__ void copy(const Arguments& args, const Places<L>& places, const Tiles& tiles, int rank) {
  const uint64_t policy = read_once_policy();
  const int num_copies = tiles.count * args.num_chunks, num_first = min(num_copies, L::kStages);
  const int first_column = rank * args.num_chunks * kChunk;
  // A tile is two runs of rows: neighbours, or the gates and what goes with them.
  const int rows_apart = args.gated ? args.num_outputs : kHalf, rows_of_tile = args.gated ? kHalf : kRows;
  int tile = tiles.first, chunk = 0;  // of the weights that are next
  const auto copy_weights = [&](int stage) {
    const uint32_t to = places.stage(stage), full = places.full(stage);
    const int row = tile * rows_of_tile, column = first_column + chunk * kChunk;
    arrive_expecting(full, L::kStageBytes);
    copy_tile(to, args.weight, row, column, full, policy);
    copy_tile(to + L::kWeightBytes / 2, args.weight, row + rows_apart, column, full, policy);
    if (++chunk == args.num_chunks) {
      chunk = 0;
      tile += tiles.step;
    }
  };
  for (int i = 0; i < num_first; ++i) copy_weights(i);
  wait_for_kernel_before();
  Turn<L::kStages> turn;
  int input_chunk = 0;
  for (int i = 0; i < num_copies; ++i) {
    if (i >= num_first) {
      wait_barrier(places.empty(turn.at), turn.parity ^ 1);
      copy_weights(turn.at);
    }
    const int column = first_column + input_chunk * kChunk;
    copy_tile(places.stage(turn.at) + L::kWeightBytes, args.x, 0, column, places.full(turn.at));
    if (++input_chunk == args.num_chunks) input_chunk = 0;
    turn.advance();
  }
  // Not before: what the next one copies ahead should fill the time in which this one adds up.
  let_next_kernel_start();
}

// sums += the warp's rows of W times x, for one chunk.
template <typename T, int kTokens>
__device__ void multiply_chunk(float (&sums)[kTiles][kTokens / 8][4], uint32_t stage, int warp, int lane) {
  // Lane i gives row i % 16 of a tile of W, and the half i / 16 of its 16 columns. All rows that a lane gives are the
  // same modulo 8, which is what pieces are swizzled by.
  const uint32_t weights = stage + (warp * kTiles * 16 + lane % 16) * kPanelRowBytes, swizzle = lane % 8 * 16;
  const int half = lane / 16 * 16;
  // Of x it gives row i % 8 of 8 tokens. A load brings 16 columns for two groups of these, or, of one group, 32.
  constexpr bool kPairs = kTokens > 8;
  const uint32_t inputs =
      stage + Layout<kTokens>::kWeightBytes + (lane % 8 + (kPairs ? lane / 16 * 8 : 0)) * kPanelRowBytes;
  const int quarter = (kPairs ? lane / 8 % 2 : lane / 8) * 16;
  // As much at once as registers hold, so that loads do not wait for products.
  constexpr int kSteps = kTokens > 16 ? 1 : kChunk / 16, kLoads = (kTokens + 8) / 16;
#pragma unroll
  for (int first = 0; first < kChunk / 16; first += kSteps) {
    uint32_t x[kSteps][kLoads][4], w[kSteps][kTiles][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = first + step;
      if (kPairs || k % 2 == 0) {
#pragma unroll
        for (int n = 0; n < kLoads; ++n) {
          load_matrices(x[step][n], inputs + n * 16 * kPanelRowBytes + (swizzle ^ (k * 32 + quarter)));
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        load_matrices(w[step][m], weights + m * 16 * kPanelRowBytes + (swizzle ^ (k * 32 + half)));
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          const uint32_t (&here)[4] = kPairs ? x[step][n / 2] : x[step / 2 * 2][0];
          const int pair = (kPairs ? n : step) % 2 * 2;
          multiply_add<T>(sums[m][n], w[step][m], here[pair], here[pair + 1]);
        }
      }
    }
  }
}

// Sends sums of a tile, for kPass tokens, to the blocks that finish them: `to` and `arrived` are where these have the
// buffer and its barrier.
template <int kTokens>
__device__ void send(const Arguments& args, const float (&sums)[kTiles][kTokens / 8][4], int first_token, uint32_t to,
                     uint32_t arrived, int rank) {
  constexpr int kPass = Layout<kTokens>::kPass;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int row = (warp * kTiles + m) * 16 + eight * 8 + lane / 4, half = row / kHalf;
      const int block = row % kHalf / args.share, row_there = (rank * 2 + half) * args.share + row % args.share;
      const uint32_t place = address_in_cluster(to + (row_there * kPass + lane % 4 * 2) * 4, block);
      const uint32_t barrier = address_in_cluster(arrived, block);
#pragma unroll
      for (int n = 0; n < kPass / 8; ++n) {
        const float (&sum)[4] = sums[m][first_token / 8 + n];
        store_in_cluster(place + n * 32, sum[eight * 2], sum[eight * 2 + 1], barrier);
      }
    }
  }
}

// Of four tokens one output, over the blocks of the cluster in their order.
template <int kPass>
__device__ float4 add_up(const Arguments& args, uint32_t sums, int half, int row, int token) {
  float4 sum = load_shared(sums + ((half * args.share + row) * kPass + token) * 4);
  for (int source = 1; source < args.num_splits; ++source) {
    const float4 part = load_shared(sums + (((source * 2 + half) * args.share + row) * kPass + token) * 4);
    sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
  }
  return sum;
}

template <typename T>
__device__ float4 with_bias(const float4& sum, const void* bias, int output) {
  const float more = bias != nullptr ? widen(static_cast<const T*>(bias)[output]) : 0.0f;
  return {sum.x + more, sum.y + more, sum.z + more, sum.w + more};
}

template <typename Out>
__device__ void store(const Arguments& args, int token, int output, const float4& values) {
  const float* from = &values.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (token + i >= args.num_rows) break;
    static_cast<Out*>(args.out)[static_cast<std::int64_t>(token + i) * args.num_outputs + output] =
        narrow<Out>(from[i]);
  }
}

__device__ inline float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

// This block's share of a tile's outputs for kPass tokens.
template <typename T, int kPass>
__device__ void finish(const Arguments& args, uint32_t sums, int tile, int first_token, int rank) {
  const int rows = args.gated ? args.share : 2 * args.share;
  const int quads = (min(kPass, args.num_rows - first_token) + 3) / 4;
  for (int i = threadIdx.x; i < rows * quads; i += kMultiplyThreads) {
    const int row = i % args.share, half = i % rows / args.share, quad = i / rows * 4, token = first_token + quad;
    const int output = (args.gated ? tile : tile * 2 + half) * kHalf + rank * args.share + row;
    if (output >= args.num_outputs) continue;
    float4 sum = with_bias<T>(add_up<kPass>(args, sums, half, row, quad), args.bias, output);
    if (args.gated) {
      const float4 up = with_bias<T>(add_up<kPass>(args, sums, 1, row, quad), args.bias, args.num_outputs + output);
      sum = {silu_times(sum.x, up.x), silu_times(sum.y, up.y), silu_times(sum.z, up.z), silu_times(sum.w, up.w)};
    }
    if (args.wide) {
      store<float>(args, token, output, sum);
    } else {
      store<T>(args, token, output, sum);
    }
  }
}

template <typename T, int kTokens>
__device__ void multiply(const Arguments& args, const Places<Layout<kTokens>>& places, const Tiles& tiles, int rank) {
  using L = Layout<kTokens>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  Turn<L::kStages> turn;
  Turn<2> sent, received;
  int tile_received = -1, token_received = 0;  // what is to be finished, if anything
  const auto finish_received = [&] {
    wait_cluster_barrier(places.summed(received.at), received.parity);
    finish<T, L::kPass>(args, places.sums(received.at), tile_received, token_received, rank);
    received.advance();
  };
  for (int i = 0; i < tiles.count; ++i) {
    float sums[kTiles][kTokens / 8][4] = {};
    for (int chunk = 0; chunk < args.num_chunks; ++chunk) {
      wait_barrier(places.full(turn.at), turn.parity);
      multiply_chunk<T, kTokens>(sums, places.stage(turn.at), warp, lane);
      __syncwarp();
      if (lane == 0) arrive(places.empty(turn.at));
      turn.advance();
    }
#pragma unroll
    for (int first = 0; first < kTokens; first += L::kPass) {
      if (first >= args.num_rows) break;
      // Two buffers are enough: who sends for one has received for the other, and those that sent that had read this.
      if (tile_received >= 0) finish_received();
      sync_warpgroup(1);
      if (threadIdx.x == 0) arrive_expecting(places.summed(sent.at), L::kSumBytes);
      send<kTokens>(args, sums, first, places.sums(sent.at), places.summed(sent.at), rank);
      sent.advance();
      tile_received = tiles.first + i * tiles.step;
      token_received = first;
    }
  }
  if (tile_received >= 0) finish_received();
}

template <typename T, int kTokens>
__global__ void __launch_bounds__(kThreads) linear_skinny_kernel(const __grid_constant__ Arguments args) {
  using L = Layout<kTokens>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Places<L> places(shared_address(shared));
  if (threadIdx.x == kMultiplyThreads) {
    for (int i = 0; i < L::kStages; ++i) {
      init_barrier(places.full(i), 1);
      init_barrier(places.empty(i), kWarps);
    }
    for (int i = 0; i < 2; ++i) init_barrier(places.summed(i), 1);
    show_barriers();
  }
  __syncthreads();
  arrive_at_cluster();
  const Tiles tiles(args);
  const int rank = rank_in_cluster();
  if (threadIdx.x / kWarp == kWarps) {
    if (threadIdx.x == kMultiplyThreads) copy<L>(args, places, tiles, rank);
  } else {
    wait_for_cluster();  // for its barriers
    multiply<T, kTokens>(args, places, tiles, rank);
  }
}

// What a launch of so many clusters of `num_splits` blocks is made of. Not to be moved: `config` refers to
// `attributes`.
struct Launch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};

  Launch(int num_clusters, int num_splits, int shared_bytes, Stream stream) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(num_splits), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(static_cast<unsigned>(num_clusters * num_splits));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
  }
  Launch(const Launch&) = delete;
};

template <typename T, int kTokens>
auto allowed_kernel() {
  auto* kernel = linear_skinny_kernel<T, kTokens>;
  static std::atomic<std::uint64_t> allowed{0};
  allow_shared_bytes(kernel, kMostSharedBytes, allowed, kName);
  return kernel;
}

template <typename T, int kTokens>
void launch(const Arguments& args, int num_clusters, Stream stream) {
  const Launch how(num_clusters, args.num_splits, Layout<kTokens>::kBytes, stream);
  check(cudaLaunchKernelEx(&how.config, allowed_kernel<T, kTokens>(), args), kName);
}

// How many clusters of `num_splits` blocks there is room for, one block a multiprocessor.
int clusters_at_once(int num_splits) {
  const Launch how(1, num_splits, kMostSharedBytes, nullptr);
  int num_clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&num_clusters, allowed_kernel<__nv_bfloat16, 8>(), &how.config), kName);
  return num_clusters;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

SkinnyLinear::SkinnyLinear(Dtype dtype, const void* weight, std::int64_t row_stride, int num_outputs, int depth,
                           const void* bias)
    : dtype_(dtype),
      weight_(tensor_map(weight, num_outputs, depth, row_stride, kHalf)),
      bias_(bias),
      num_outputs_(num_outputs),
      depth_(depth) {
  if (dtype == Dtype::f32) throw std::invalid_argument("a linear_skinny weight must be f16 or bf16");
  // The more parts, the smaller their sums and the later they are done: the fewest with which the busiest
  // multiprocessor has least to read.
  int least = 0;
  for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
    const int clusters = clusters_at_once(splits);
    if (clusters == 0) break;
    const int chunks = ceil_div(ceil_div(num_outputs, kRows), clusters) * ceil_div(ceil_div(depth, kChunk), splits);
    if (least == 0 || chunks < least) {
      least = chunks;
      num_splits_ = splits;
      num_clusters_ = clusters;
    }
  }
}

void SkinnyLinear::multiply(const void* x, std::int64_t x_stride, int num_rows, void* out, bool wide, bool gated,
                            Stream stream) const {
  if (num_rows == 0) return;
  if (num_rows > kMaxSkinnyRows) throw std::invalid_argument("linear_skinny takes 64 rows at most");
  Arguments args{};
  args.weight = weight_;
  args.bias = bias_;
  args.out = out;
  args.num_rows = num_rows;
  args.num_outputs = gated ? num_outputs_ / 2 : num_outputs_;
  args.num_tiles = ceil_div(args.num_outputs, gated ? kHalf : kRows);
  args.num_splits = num_splits_;
  args.share = kHalf / num_splits_;
  args.num_chunks = ceil_div(ceil_div(depth_, kChunk), num_splits_);
  args.gated = gated;
  args.wide = wide;
  const int num_clusters = std::min(args.num_tiles, num_clusters_);
  const auto launch_for = [&](auto zero, auto tokens) {
    args.x = tensor_map(x, num_rows, depth_, x_stride, tokens);
    launch<decltype(zero), decltype(tokens)::value>(args, num_clusters, stream);
  };
  const auto launch_with = [&](auto zero) {
    if (num_rows <= 8) return launch_for(zero, std::integral_constant<int, 8>{});
    if (num_rows <= 16) return launch_for(zero, std::integral_constant<int, 16>{});
    if (num_rows <= 32) return launch_for(zero, std::integral_constant<int, 32>{});
    launch_for(zero, std::integral_constant<int, 64>{});
  };
  if (dtype_ == Dtype::bf16) {
    launch_with(__nv_bfloat16{});
  } else {
    launch_with(__half{});
  }
}

}  // namespace tercet::cuda
