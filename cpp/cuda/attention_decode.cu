// Paged decode attention: q [T, H, D], k_cache, v_cache [N, G, S, D] -> out [T, H, D]. Bound by the reading of K and V.
//
// An item is a token, a chunk of its context and one KV head with up to 16 of its query heads, which are the
// columns of products: a KV head is read once for all of them. A block of four warps takes a run of items from the
// plan. Each warp streams its own tiles of 16 tokens (32 of e4m3), cp.async from the pages into a ring of its own, and
// its loads run ahead over the ends of items, so that memory never waits for a merge; warps meet once an item. A token
// of more than one chunk leaves its states (m, l, o) in memory for attention_merge.cu: the bits of a result depend on
// the token alone. The first loads do not wait for the kernel that places the step's own keys and values.
#include "attention_decode.cuh"
#include "dependent_launch.cuh"

namespace tercet::cuda {
namespace {

// The query heads of an item as operands: [D, 8 N], zeros past its heads.
template <typename T, typename S, int D, int N>
__device__ void load_queries(const DecodeArguments& args, const Item& item, uint32_t (&q)[D / 16][N][2]) {
  using Op = Operands<T, S, D>;
  const int row = threadIdx.x % kWarp / 4;
  const T* base = static_cast<const T*>(args.tensors.q) + item.unit.token * args.tensors.q_token_stride +
                  (item.head + row) * args.tensors.q_head_stride;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const bool present = n * 8 + row < item.num_heads;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* from = base + n * 8 * args.tensors.q_head_stride + k * 16 + Op::query_column(half);
        q[k][n][half] = present ? Op::query(__ldg(reinterpret_cast<const unsigned*>(from))) : 0u;
      }
    }
  }
}

// What a warp has seen of an item's context. Of 8 heads a lane has `lane % 4 * 2` and the next: their maximum, their
// sum over the lane's own tokens, and some rows of o, relative to the maximum.
template <int D, int N>
struct State {
  float maximum[N][2];
  float sum[N][2];
  float o[D / 16][N][4];

  __device__ State() : o{} {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      maximum[n][0] = maximum[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0.0f;
    }
  }

  __device__ void add_up() {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) sum[n][j] = column_sum(sum[n][j]);
    }
  }
};

// One tile of tokens, of which those from `first` on count, up to num_tokens. What lies before is the sequence's own,
// and so are numbers that a weight of 0 takes out.
template <typename T, typename S, int D, int N, bool kLimited>
__device__ void attend(const uint32_t (&q)[D / 16][N][2], uint32_t k_tile, uint32_t v_tile, int first, int num_tokens,
                       float scale_log2, float cap_log2, State<D, N>& state) {
  using Op = Operands<T, S, D>;
  using Tile = KvTile<S, D>;
  constexpr int kSteps = Tile::kTokens / 16;
  float scores[kSteps][N][4] = {};  // of tokens lane / 4 and 8 more, and two heads of each
#pragma unroll
  for (int t = 0; t < kSteps; ++t) Op::template add_scores<N>(scores[t], q, Tile::first_keys(k_tile), t * 16);
  if (kLimited && cap_log2 > 0.0f) {
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[t][n][i] = tanh_of_power(scores[t][n][i] * cap_log2);
      }
    }
  }
  if (num_tokens < Tile::kTokens || (kLimited && first > 0)) {
    const int token = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = t * 16 + i / 2 * 8 + token;
          if (at >= num_tokens || (kLimited && at < first)) scores[t][n][i] = -INFINITY;
        }
      }
    }
  }
  float factor[N][2];
  bool raises = false;
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float here = -INFINITY;
#pragma unroll
      for (int t = 0; t < kSteps; ++t) here = fmaxf(here, fmaxf(scores[t][n][j], scores[t][n][j + 2]));
      const float raised = fmaxf(state.maximum[n][j], column_max(here) * scale_log2);
      factor[n][j] = power_of_2(state.maximum[n][j] - raised);
      state.maximum[n][j] = raised;
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
#pragma unroll
        for (int i = j; i < 4; i += 2) {
          scores[t][n][i] = power_of_2(fmaf(scores[t][n][i], scale_log2, -raised));
          sum += scores[t][n][i];
        }
      }
      state.sum[n][j] = state.sum[n][j] * factor[n][j] + sum;
      raises = raises || factor[n][j] != 1.0f;
    }
  }
  // Most tiles do not raise a maximum; times 1 changes nothing.
  if (__any_sync(0xffffffffu, raises)) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) state.o[m][n][i] *= factor[n][i % 2];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    using Factor = typename Op::Factor;
    uint32_t weights[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[n][half] = transpose(pack<Factor>(scores[t][n][half * 2], scores[t][n][half * 2 + 1]));
      }
    }
    Op::template add_values<N>(state.o, weights, Tile::first_values(v_tile), t * 16);
  }
}

// Where the warps' states of an item meet, in shared memory, a few heads at a time.
template <int D>
struct Merge {
  static constexpr int kRows = 4;
  float o[kWarps][kRows][D + 4];  // neighbouring rows meet other banks
  float2 maxima[kWarps][kRows];   // the maximum and the sum

  // A warp's rows from `first` on, of num_rows in all.
  template <typename Op, int N>
  __device__ void put(const State<D, N>& state, int first, int num_rows) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = n * 8 + lane % 4 * 2 + j, at = row - first;
        if (at < 0 || at >= kRows || row >= num_rows) continue;
        if (lane < 4) maxima[warp][at] = {state.maximum[n][j], state.sum[n][j]};
#pragma unroll
        for (int m = 0; m < D / 16; ++m) Op::put(o[warp][at] + m * 16, state.o[m][n][j], state.o[m][n][j + 2]);
      }
    }
  }
};

// Four columns of what has been seen of a head's context, relative to the maximum.
struct Sum {
  float maximum = -INFINITY, sum = 0.0f;
  float4 o = {0.0f, 0.0f, 0.0f, 0.0f};

  // Another's, whose maximum is no greater.
  __device__ void add(float2 maximum_and_sum, float4 more) {
    const float factor = power_of_2(maximum_and_sum.x - maximum);
    sum += factor * maximum_and_sum.y;
    o.x += factor * more.x;
    o.y += factor * more.y;
    o.z += factor * more.z;
    o.w += factor * more.w;
  }
};

template <typename T>
__device__ void write_result(const DecodeArguments& args, int64_t row, int head_dim, int column, const Sum& sum) {
  const float scale = args.tensors.v_scale / sum.sum;
  const uint2 packed = {pack<T>(sum.o.x * scale, sum.o.y * scale), pack<T>(sum.o.z * scale, sum.o.w * scale)};
  *reinterpret_cast<uint2*>(static_cast<T*>(args.tensors.out) + row * head_dim + column) = packed;
}

// After every warp has put its rows from `first` on: writes an item's results, or the chunk's states for merge_chunks.
template <typename T, int D, bool kLimited>
__device__ void write_rows(const DecodeArguments& args, const Item& item, int first, const Merge<D>& merge) {
  constexpr int kColumns = D / 4;
  const bool is_whole =
      kLimited ? reach_of(args.window, item.unit.context).num_chunks == 1 : item.unit.context <= kChunk;
  const int num_rows = min(Merge<D>::kRows, item.num_heads - first);
  for (int at = threadIdx.x; at < num_rows * kColumns; at += kThreads) {
    const int row = at / kColumns, column = at % kColumns * 4, head = item.head + first + row;
    Sum all;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) all.maximum = fmaxf(all.maximum, merge.maxima[warp][row].x);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      all.add(merge.maxima[warp][row], *reinterpret_cast<const float4*>(&merge.o[warp][row][column]));
    }
    if (is_whole) {
      write_result<T>(args, static_cast<int64_t>(item.unit.token) * args.num_heads + head, D, column, all);
    } else {
      const int64_t to = static_cast<int64_t>(item.unit_index) * args.num_heads + head;
      __stcg(reinterpret_cast<float4*>(args.states + to * D + column), all.o);
      if (column == 0) __stcg(args.maxima + to, {all.maximum, all.sum});
    }
  }
}

template <typename T, typename S, int D, int N, bool kLimited>
__global__ void __launch_bounds__(kThreads, decode_blocks(D))
    decode_kernel(const __grid_constant__ DecodeArguments args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  using R = Ring<S, D>;
  constexpr int kTokens = KvTile<S, D>::kTokens;
  const uint32_t ring = shared_address(shared) + threadIdx.x / kWarp * R::kBytes;
  auto& merge = *reinterpret_cast<Merge<D>*>(shared + kWarps * R::kBytes);
  if (!args.starts_early) wait_for_kernel_before();
  const Share share = args.plan.shares[blockIdx.x];
  const int begin = share.begin, end = share.end;
  Item item(args, share);
  Loader<S, D, kLimited> loader(args, item, end - begin, ring);
#pragma unroll 1
  for (int i = 0; i < R::kStages; ++i) {
    if (loader.at_end()) wait_for_kernel_before();
    loader.load();
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (begin >= end) return;
  uint32_t q[D / 16][N][2];
  load_queries<T, S, D, N>(args, item, q);
  int stage = 0;
  for (int index = begin; index < end; ++index) {
    Item next = item;
    if (index + 1 < end) next.step(args);
    State<D, N> state;
    const int unseen = kLimited ? unseen_of(args, item.unit) : 0;
    for (int tile = first_tile<S, D, kLimited>(args, item); tile * kTokens < item.num_tokens; tile += kWarps) {
      wait_copies<R::kStages - 1>();
      __syncwarp();
      const uint32_t k_tile = ring + stage * (2 * R::kTileBytes);
      attend<T, S, D, N, kLimited>(q, k_tile, k_tile + R::kTileBytes, unseen - tile * kTokens,
                                   item.num_tokens - tile * kTokens, args.scale_log2, args.cap_log2, state);
      __syncwarp();  // this overwrites what was read here
      loader.load();
      stage = stage + 1 == R::kStages ? 0 : stage + 1;
    }
    load_queries<T, S, D, N>(args, next, q);
    state.add_up();
    for (int first = 0; first < item.num_heads; first += Merge<D>::kRows) {
      merge.template put<Operands<T, S, D>, N>(state, first, item.num_heads);
      __syncthreads();
      write_rows<T, D, kLimited>(args, item, first, merge);
      __syncthreads();
    }
    item = next;
  }
}

template <typename T, typename S, int D, int N, bool kLimited>
void launch(const DecodeArguments& args, const AttentionSizes& sizes, Stream stream) {
  constexpr int kBytes = kWarps * Ring<S, D>::kBytes + static_cast<int>(sizeof(Merge<D>));
  static std::atomic<std::uint64_t> allowed{0};
  const auto kernel = decode_kernel<T, S, D, N, kLimited>;
  allow_shared_bytes(kernel, kBytes, allowed, "attention_decode");
  launch_behind(kernel, dim3(static_cast<unsigned>(sizes.num_blocks)), kThreads, kBytes, stream, args,
                "attention_decode");
}

}  // namespace

void attention_decode(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      const AttentionSizes& sizes, int* plan, float* states, bool starts_early, Stream stream) {
  const int group = group_of(shape);
  const bool is_limited = shape.window > 0 || tensors.softcap > 0.0f;
  DecodeArguments args{rows,
                       tensors,
                       view_of_plan(sizes, plan),
                       states,
                       reinterpret_cast<float2*>(states + sizes.num_units * shape.num_heads * shape.head_dim),
                       shape.num_heads,
                       shape.num_kv_heads,
                       group,
                       parts_of(shape),
                       parts_of_group(group),
                       log2_of(shape.block_size),
                       static_cast<int>(shape.num_blocks) - 1,
                       scale_log2(tensors),
                       starts_early && sizes.one_each,
                       shape.window,
                       cap_log2(tensors)};
  with_heads(shape, [&](auto zero, auto dim) {
    using T = decltype(zero);
    constexpr int D = decltype(dim)::value;
    const auto with_cache = [&](auto stored) {
      using S = decltype(stored);
      const auto launch_for = group <= 8   ? is_limited ? launch<T, S, D, 1, true> : launch<T, S, D, 1, false>
                              : is_limited ? launch<T, S, D, 2, true>
                                           : launch<T, S, D, 2, false>;
      launch_for(args, sizes, stream);
    };
    if (shape.cache_dtype != Dtype::e4m3) return with_cache(T{});
    if constexpr (D == 64 || D == 128) with_cache(E4m3{});
  });
  merge_chunks(shape, args, sizes, stream);
}

}  // namespace tercet::cuda
