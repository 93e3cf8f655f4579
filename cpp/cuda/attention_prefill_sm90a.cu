// Paged attention of chunks for Hopper: q [T, H, D], k_cache, v_cache [N, G, S, D] -> out [T, H, D], D 64 or 128.
//
// Rows and tiles as in attention_prefill.cu: 128 query rows (token, head of the group) a block, two warpgroups of 64,
// and the context in tiles of 128 tokens. A third warpgroup gathers K and V from the pages into two stages of each; a
// tile of TMA would need pages as large as the tile. Stages of K and of V are given back apart, so that the products
// of a tile's queries with the next keys are under way while this tile's exponentials are taken, and those of the other
// warpgroup fill what gaps remain. Blocks that stay for several tiles, dealt out beforehand, were slower than as many
// blocks as tiles, the heaviest first: what the hardware hands out as it becomes free is better balanced.
#include "attention_stages_sm90a.cuh"
#include "dependent_launch.cuh"

namespace tercet::cuda {
namespace {

// Of 64 Ki registers: 128 threads that copy, 256 that multiply.
constexpr int kCopyRegisters = 40;
constexpr int kMultiplyRegisters = 232;

// What a lane has of its two rows.
template <bool kLimited>
struct Softmax {
  float maximum[2] = {kNoMaximum<kLimited>, kNoMaximum<kLimited>};
  float sum[2] = {0.0f, 0.0f};
  int sees[2];  // positions below these
  int from[2];  // and from these on

  // Scores become weights relative to the maximum, which may rise: what was summed before takes the factor.
  __device__ void weigh(float (&scores)[kKeyTiles][4], float scale_log2, float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float here = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        here = fmaxf(here, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
      }
      const float raised = fmaxf(maximum[half], row_max(here) * scale_log2);
      factor[half] = power_of_2(maximum[half] - raised);
      maximum[half] = raised;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = half * 2; i < half * 2 + 2; ++i) {
          scores[n][i] = power_of_2(fmaf(scores[n][i], scale_log2, -raised));
          added += scores[n][i];
        }
      }
      sum[half] = sum[half] * factor[half] + added;
    }
  }

  __device__ void hide(float (&scores)[kKeyTiles][4], int start) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int position = start + n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        if (position >= sees[i / 2] || (kLimited && position < from[i / 2])) scores[n][i] = -INFINITY;
      }
    }
  }
};

template <typename T, typename S, int D, bool kLimited>
__device__ void multiply(const PrefillArguments& args, const PrefillTile<kLimited>& tile, uint32_t q_tile,
                         const Stages& keys, const Stages& values) {
  using Factor = FactorOf<T, S>;
  constexpr int kPieces = D / 8, kPanelBytes = kKeys * kPanelRowBytes;
  const int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int lane = thread % kWarp, first_row = tile.first_row + group * 64;
  const uint32_t my_q = q_tile + group * 64 * kPanelRowBytes;
  {
    sync_warpgroup(1 + group);  // no warp reads the queries of the tile before
    const T* q = static_cast<const T*>(args.tensors.q) + tile.first_token * args.tensors.q_token_stride +
                 tile.kv_head * args.group * args.tensors.q_head_stride;
#pragma unroll 4
    for (int i = 0; i < 64 * kPieces / kGroupThreads; ++i) {
      const int at = i * kGroupThreads + thread, piece = at % kPieces;
      const int row = min(first_row + at / kPieces, tile.last_row);  // past the end: anything finite
      const int token = row / args.group, head = row - token * args.group;
      const T* from = q + token * args.tensors.q_token_stride + head * args.tensors.q_head_stride + piece * 8;
      const uint32_t to = q_tile + panel_offset<kRows>(group * 64 + at / kPieces, piece);
      if constexpr (std::is_same_v<Factor, T>) {
        copy_async(to, from);
      } else {
        const auto x = *reinterpret_cast<const Vector<T>*>(from);
        uint4 pairs;
        pairs.x = pack<Factor>(widen(x.at[0]), widen(x.at[1]));
        pairs.y = pack<Factor>(widen(x.at[2]), widen(x.at[3]));
        pairs.z = pack<Factor>(widen(x.at[4]), widen(x.at[5]));
        pairs.w = pack<Factor>(widen(x.at[6]), widen(x.at[7]));
        store_shared(to, pairs);
      }
    }
    commit_copies();
    wait_copies<0>();
    show_to_products();
    sync_warpgroup(1 + group);
  }
  const auto position_of = [&](int row) { return tile.before + min(row, tile.last_row) / args.group; };
  const int all_see = position_of(first_row) + 1, some_see = position_of(first_row + 63) + 1;
  const int row = first_row + thread / kWarp * 16 + lane / 4;
  const int all_from = tile.first_seen(args, first_row + 63), first_step = first_step_of(args, tile);
  Softmax<kLimited> softmax;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    softmax.sees[half] = position_of(row + half * 8) + 1;
    softmax.from[half] = tile.first_seen(args, row + half * 8);
  }

  const uint64_t q_descriptor = tile_descriptor(my_q, 0);
  float scores[kKeyTiles][4], o[D / 8][4] = {}, factor[2];
  uint32_t weights[kKeys / 16][4];
  const auto multiply_keys = [&](int step) {
    keys.wait_full(step);
    const uint64_t tile_of_keys = tile_descriptor(keys.tile(step), 0);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int panel = k / 4, within = k % 4 * 32;
      multiply_tiles<Factor>(scores, advance(q_descriptor, panel * kRows * kPanelRowBytes + within),
                             advance(tile_of_keys, panel * kPanelBytes + within), k != 0);
    }
    commit_products();
  };
  const auto multiply_values = [&](int step) {
    values.wait_full(step);
    const uint64_t tile_of_values = tile_descriptor(values.tile(step), kPanelBytes);
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      multiply_weights<Factor, D / 8>(o, weights[k], advance(tile_of_values, k * 16 * kPanelRowBytes));
    }
    commit_products();
  };
  const auto weigh = [&](int step) {
    const int start = (first_step + step) * kKeys;
    if (kLimited && args.cap_log2 > 0.0f) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = tanh_of_power(scores[n][i] * args.cap_log2);
      }
    }
    if (start + kKeys > all_see || (kLimited && start < all_from)) softmax.hide(scores, start);
    softmax.weigh(scores, args.scale_log2, factor);
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&pair)[4] = scores[k * 2 + i / 2];
        weights[k][i] = pack<Factor>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
  };

  const int num_steps = num_steps_of(args, tile);
  const int my_steps = max(1, (some_see + kKeys - 1) / kKeys - first_step);  // no more than the block's
  multiply_keys(0);
  wait_products<0>(scores);
  keys.give_back(0);
  weigh(0);
  pack_weights();
  for (int step = 1; step < my_steps; ++step) {
    multiply_keys(step);
    multiply_values(step - 1);
    wait_products<1>(scores);
    keys.give_back(step);
    weigh(step);
    wait_products<0>(o);
    values.give_back(step - 1);
    // Most tiles do not raise a maximum; times 1 changes nothing.
    if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] *= factor[i / 2];
      }
    }
    pack_weights();
  }
  multiply_values(my_steps - 1);
  wait_products<0>(o);
  values.give_back(my_steps - 1);
  for (int step = my_steps; step < num_steps; ++step) {  // what only the other warpgroup sees
    keys.wait_full(step);
    keys.give_back(step);
    values.wait_full(step);
    values.give_back(step);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float scale = args.tensors.v_scale / row_sum(softmax.sum[half]);
    const int query_row = row + half * 8;
    if (query_row > tile.last_row) continue;
    const int token = query_row / args.group, head = tile.kv_head * args.group + query_row - token * args.group;
    T* to = static_cast<T*>(args.tensors.out) +
            (static_cast<int64_t>(tile.first_token + token) * args.num_heads + head) * D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<uint32_t*>(to + n * 8) = pack<T>(o[n][half * 2] * scale, o[n][half * 2 + 1] * scale);
    }
  }
}

template <typename T, typename S, int D, bool kLimited>
__global__ void __launch_bounds__(kThreads, 1) prefill_kernel(const __grid_constant__ PrefillArguments args) {
  using L = Layout<S, D>;
  extern __shared__ unsigned char shared[];
  wait_for_kernel_before();
  let_next_kernel_start();
  const int num_tiles = *args.plan.num_tiles;
  if (static_cast<int>(blockIdx.y) >= num_tiles) return;
  const uint32_t base = (shared_address(shared) + L::kAlignment - 1) / L::kAlignment * L::kAlignment;
  Stages keys{base + L::kKeysAt, base + L::kBarriersAt, L::kTileBytes, 0};
  Stages values{base + L::kValuesAt, base + L::kBarriersAt + 2 * kStages * 8, L::kTileBytes, 0};
  if (threadIdx.x == 0) {
    keys.init();
    values.init();
    show_to_products();
  }
  __syncthreads();
  // As a rule a block has one tile.
  const auto for_tiles = [&](auto work) {
    for (int index = blockIdx.y; index < num_tiles; index += gridDim.y) {
      const PrefillTile<kLimited> tile(args, index, blockIdx.x, kRows);
      if (tile.end <= 0) continue;
      work(tile);
      keys.served += num_steps_of(args, tile);
      values.served = keys.served;
    }
  };
  if (threadIdx.x / kGroupThreads == kGroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopyRegisters));
    for_tiles([&](const PrefillTile<kLimited>& tile) {
      if constexpr (std::is_same_v<S, E4m3>) {
        widen_all<D>(args, tile, base + L::kBytesAt, keys, values);
      } else {
        gather_all<T, D>(args, tile, keys, values);
      }
    });
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplyRegisters));
    for_tiles([&](const PrefillTile<kLimited>& tile) { multiply<T, S, D>(args, tile, base, keys, values); });
  }
}

template <typename T, typename S, int D, bool kLimited>
void launch(const PrefillArguments& args, std::int64_t num_blocks, Stream stream) {
  constexpr int kBytes = Layout<S, D>::kBytes;
  static std::atomic<std::uint64_t> allowed{0};
  const auto kernel = prefill_kernel<T, S, D, kLimited>;
  allow_shared_bytes(kernel, kBytes, allowed, "attention_prefill");
  const dim3 blocks(args.num_kv_heads, static_cast<unsigned>(num_blocks));
  launch_behind(kernel, blocks, kThreads, kBytes, stream, args, "attention_prefill");
}

}  // namespace

bool prefill_on_hopper(const AttentionShape& shape, const PrefillArguments& args, std::int64_t num_blocks,
                       Stream stream) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "attention_prefill");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "attention_prefill");
  if (major != 9 || (shape.head_dim != 64 && shape.head_dim != 128)) return false;
  with_heads(shape, [&](auto zero, auto dim) {
    using T = decltype(zero);
    constexpr int D = decltype(dim)::value;
    if constexpr (D == 64 || D == 128) {
      const auto with_cache = [&](auto stored) {
        using S = decltype(stored);
        const auto launch_for = is_limited(args) ? launch<T, S, D, true> : launch<T, S, D, false>;
        launch_for(args, num_blocks, stream);
      };
      shape.cache_dtype == Dtype::e4m3 ? with_cache(E4m3{}) : with_cache(T{});
    }
  });
  return true;
}

}  // namespace tercet::cuda
