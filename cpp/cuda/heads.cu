// q [T, H, D], k, v [T, G, D] -> normed and rotated, k and v in their pages [N, G, S, D].
//
// Some lanes of a warp per (token, head), 16 bytes each where the layout allows: a lane holds elements d and the
// partners d + D/2 that they rotate with in registers, so one read and one write of each element are all the traffic,
// and a decode step's norms, rotation and cache writes are one launch. A token's result depends on that token alone.
#include <climits>

#include "dependent_launch.cuh"
#include "e4m3.cuh"
#include "heads.h"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPerLane = 8;  // elements of each half that a lane has room for

template <typename T, int kWide>
struct alignas(kWide * sizeof(T) < 16 ? kWide * sizeof(T) : 16) Group {
  T at[kWide];
};

template <typename T, int kWide>
__device__ void put(T* to, const float (&x)[kWide], float factor) {
  Group<T, kWide> group;
#pragma unroll
  for (int j = 0; j < kWide; ++j) group.at[j] = narrow<T>(x[j] * factor);
  *reinterpret_cast<Group<T, kWide>*>(to) = group;
}

struct Arguments : Heads {
  int num_lanes;  // that share a head, a power of two
};

// S: of the cache.
template <typename T, typename S, int kWide>
__global__ void __launch_bounds__(kThreads) heads_kernel(const Arguments args) {
  using Wide = Group<T, kWide>;
  using WideFloat = Group<float, kWide>;
  constexpr int kParts = kPerLane / kWide;
  const int per_token = args.num_heads + args.num_kv_heads * (args.v != nullptr ? 2 : 1);
  const int num_lanes = args.num_lanes;
  const unsigned task = (blockIdx.x * kThreads + threadIdx.x) / num_lanes;
  const unsigned token = task / per_token;
  int head = static_cast<int>(task % per_token);
  const int lane = threadIdx.x % num_lanes;
  const int half = args.head_dim / 2;
  if (token >= args.num_tokens) return;
  wait_for_kernel_before();
  let_next_kernel_start();
  const T *from, *norm = nullptr;
  T* to;
  S* cache = nullptr;
  float factor = 1.0f;
  bool rotates = args.cos_sin != nullptr;
  if (head < args.num_heads) {
    to = static_cast<T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride;
    from = to;
    norm = static_cast<const T*>(args.q_norm);
  } else if (head -= args.num_heads; head < args.num_kv_heads) {
    to = static_cast<T*>(args.k) + token * args.k_token_stride + head * args.k_head_stride;
    from = to;
    norm = static_cast<const T*>(args.k_norm);
    cache = static_cast<S*>(args.k_cache);
    factor = args.k_scale;
  } else {
    head -= args.num_kv_heads;
    to = nullptr;
    from = static_cast<const T*>(args.v) + token * args.v_token_stride + head * args.v_head_stride;
    cache = static_cast<S*>(args.v_cache);
    factor = args.v_scale;
    rotates = false;
  }
  // Asked for beside the elements, not before them.
  const std::int64_t slot = cache != nullptr ? args.slots[token] : 0;
  const std::int64_t position = rotates ? args.positions[token] : 0;

  float low[kParts][kWide], high[kParts][kWide];
  float sum = 0.0f;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int d = (part * num_lanes + lane) * kWide;
    if (d >= half) break;
    const Wide first = *reinterpret_cast<const Wide*>(from + d);
    const Wide second = *reinterpret_cast<const Wide*>(from + half + d);
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      low[part][j] = widen(first.at[j]);
      high[part][j] = widen(second.at[j]);
      sum += low[part][j] * low[part][j] + high[part][j] * high[part][j];
    }
  }
  if (cache != nullptr) {
    if (slot < 0 || slot >= args.num_slots) return;
    const unsigned place = static_cast<unsigned>(slot), block_size = args.block_size;
    cache +=
        (static_cast<std::int64_t>(place / block_size * args.num_kv_heads + head) * block_size + place % block_size) *
        args.head_dim;
  }
  if (rotates && (position < 0 || position >= args.num_positions)) return;
  const float* table = args.cos_sin + position * args.head_dim;
  float scale = 1.0f;
  if (norm != nullptr) {
    // Other heads of the warp may have left, or need no sum.
    const unsigned first_lane = threadIdx.x % kWarp / num_lanes * num_lanes;
    const unsigned lanes_of_head = (num_lanes == kWarp ? 0xffffffffu : (1u << num_lanes) - 1) << first_lane;
    for (int lanes = num_lanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(lanes_of_head, sum, lanes);
    scale = rsqrtf(sum / static_cast<float>(args.head_dim) + args.eps);
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int d = (part * num_lanes + lane) * kWide;
    if (d >= half) break;
    if (norm != nullptr) {
      const Wide of_low = *reinterpret_cast<const Wide*>(norm + d);
      const Wide of_high = *reinterpret_cast<const Wide*>(norm + half + d);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        low[part][j] *= scale * widen(of_low.at[j]);
        high[part][j] *= scale * widen(of_high.at[j]);
      }
    }
    if (rotates) {
      const WideFloat cos = *reinterpret_cast<const WideFloat*>(table + d);
      const WideFloat sin = *reinterpret_cast<const WideFloat*>(table + half + d);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float x = low[part][j], y = high[part][j];
        low[part][j] = x * cos.at[j] - y * sin.at[j];
        high[part][j] = y * cos.at[j] + x * sin.at[j];
      }
    }
    if (cache != nullptr) {
      put(cache + d, low[part], factor);
      put(cache + half + d, high[part], factor);
    } else {
      put(to + d, low[part], 1.0f);
      put(to + half + d, high[part], 1.0f);
    }
  }
}

template <typename T, typename S, int kWide>
void launch(const Heads& args, std::int64_t num_tasks, Stream stream) {
  const int half = args.head_dim / 2;
  int num_lanes = 1;
  while (num_lanes < kWarp && num_lanes * kWide < half) num_lanes *= 2;
  const std::int64_t num_blocks = (num_tasks * num_lanes + kThreads - 1) / kThreads;
  if (half > kPerLane * num_lanes || num_blocks * kThreads > UINT_MAX || args.num_slots > UINT_MAX) {
    throw std::invalid_argument(std::to_string(num_tasks) + " heads of " + std::to_string(args.head_dim) +
                                " elements are more than fit");
  }
  Arguments arguments{args, num_lanes};
  arguments.k_scale = 1.0f / args.k_scale;
  arguments.v_scale = 1.0f / args.v_scale;
  launch_behind(heads_kernel<T, S, kWide>, dim3(static_cast<unsigned>(num_blocks)), kThreads, 0, stream, arguments,
                "place_heads");
}

template <typename T, typename S>
void launch(const Heads& args, std::int64_t num_tasks, Stream stream) {
  constexpr int kSize = Vector<T>::kSize;
  const auto fits = [](const void* data, std::int64_t token_stride, std::int64_t head_stride) {
    return is_aligned(data) && token_stride % kSize == 0 && head_stride % kSize == 0;
  };
  if (args.head_dim % (2 * kSize) == 0 && fits(args.q, args.q_token_stride, args.q_head_stride) &&
      fits(args.k, args.k_token_stride, args.k_head_stride) && fits(args.v, args.v_token_stride, args.v_head_stride) &&
      is_aligned(args.k_cache) && is_aligned(args.v_cache) && is_aligned(args.q_norm) && is_aligned(args.k_norm) &&
      is_aligned(args.cos_sin)) {
    launch<T, S, kSize>(args, num_tasks, stream);
  } else {
    launch<T, S, 1>(args, num_tasks, stream);
  }
}

}  // namespace

void place_heads(const Heads& args, Stream stream) {
  if (args.head_dim % 2 != 0) throw std::invalid_argument("heads must have an even number of elements");
  const int per_token = args.num_heads + args.num_kv_heads * (args.v != nullptr ? 2 : 1);
  const std::int64_t num_tasks = args.num_tokens * per_token;
  if (num_tasks == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.cache_dtype == args.dtype) return launch<T, T>(args, num_tasks, stream);
    if constexpr (sizeof(T) == 2) {
      if (args.cache_dtype == Dtype::e4m3) return launch<T, E4m3>(args, num_tasks, stream);
    }
    throw std::invalid_argument("the cache's dtype is none for these heads");
  });
}

}  // namespace tercet::cuda
