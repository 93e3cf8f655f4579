// q [T, H, D], k, v [T, G, D] -> normed and rotated, k and v in their pages [N, G, S, D].
//
// A warp per (token, head): each lane holds elements d and the partners d + D/2 that they rotate with in registers, so
// one read and one write of each element are all the traffic, and a decode step's norms, rotation and cache writes are
// one launch. A token's result depends on that token alone.
#include "heads.h"
#include "kernel.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxParts = 4;  // of a half head, each one access of all lanes

template <typename T, int kWide>
struct alignas(kWide * sizeof(T)) Group {
  T at[kWide];
};

template <typename T, int kWide>
__global__ void __launch_bounds__(kWarps* kWarp) heads_kernel(Heads args) {
  using Wide = Group<T, kWide>;
  const int per_token = args.num_heads + args.num_kv_heads * (args.v != nullptr ? 2 : 1);
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const std::int64_t token = task / per_token;
  if (token >= args.num_tokens) return;
  int head = static_cast<int>(task % per_token);
  const int lane = threadIdx.x % kWarp;
  const int half = args.head_dim / 2;

  const T *from, *norm = nullptr;
  T* to;
  T* cache = nullptr;
  bool rotates = args.cos_sin != nullptr;
  if (head < args.num_heads) {
    to = static_cast<T*>(args.q) + token * args.q_token_stride + head * args.q_head_stride;
    from = to;
    norm = static_cast<const T*>(args.q_norm);
  } else if (head -= args.num_heads; head < args.num_kv_heads) {
    to = static_cast<T*>(args.k) + token * args.k_token_stride + head * args.k_head_stride;
    from = to;
    norm = static_cast<const T*>(args.k_norm);
    cache = static_cast<T*>(args.k_cache);
  } else {
    head -= args.num_kv_heads;
    to = nullptr;
    from = static_cast<const T*>(args.v) + token * args.v_token_stride + head * args.v_head_stride;
    cache = static_cast<T*>(args.v_cache);
    rotates = false;
  }
  if (cache != nullptr) {
    const std::int64_t slot = args.slots[token];
    if (slot < 0 || slot >= args.num_slots) return;
    const std::int64_t block = slot / args.block_size, offset = slot % args.block_size;
    to = cache + ((block * args.num_kv_heads + head) * args.block_size + offset) * args.head_dim;
  }
  const float* table = nullptr;
  if (rotates) {
    const std::int64_t position = args.positions[token];
    if (position < 0 || position >= args.num_positions) return;
    table = args.cos_sin + position * args.head_dim;
  }

  float low[kMaxParts][kWide], high[kMaxParts][kWide];
  float sum = 0.0f;
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    const int d = (part * kWarp + lane) * kWide;
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
  float scale = 1.0f;
  if (norm != nullptr) scale = rsqrtf(warp_sum(sum) / static_cast<float>(args.head_dim) + args.eps);
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    const int d = (part * kWarp + lane) * kWide;
    if (d >= half) break;
    Wide first, second;
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      float x = low[part][j], y = high[part][j];
      if (norm != nullptr) {
        x *= scale * widen(norm[d + j]);
        y *= scale * widen(norm[half + d + j]);
      }
      if (rotates) {
        const float cos = table[d + j], sin = table[half + d + j];
        const float rotated = x * cos - y * sin;
        y = y * cos + x * sin;
        x = rotated;
      }
      first.at[j] = narrow<T>(x);
      second.at[j] = narrow<T>(y);
    }
    *reinterpret_cast<Wide*>(to + d) = first;
    *reinterpret_cast<Wide*>(to + half + d) = second;
  }
}

template <typename T, int kWide>
void launch(const Heads& args, std::int64_t num_tasks, Stream stream) {
  if (args.head_dim / 2 > kMaxParts * kWarp * kWide) {
    throw std::invalid_argument("heads of " + std::to_string(args.head_dim) + " elements do not fit a warp");
  }
  const auto num_blocks = static_cast<unsigned>((num_tasks + kWarps - 1) / kWarps);
  heads_kernel<T, kWide><<<num_blocks, kWarps * kWarp, 0, stream>>>(args);
  check_launch("place_heads");
}

}  // namespace

void place_heads(const Heads& args, Stream stream) {
  if (args.head_dim % 2 != 0) throw std::invalid_argument("heads must have an even number of elements");
  const int per_token = args.num_heads + args.num_kv_heads * (args.v != nullptr ? 2 : 1);
  const std::int64_t num_tasks = args.num_tokens * per_token;
  if (num_tasks == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto in_pairs = [](const void* data, std::int64_t token_stride, std::int64_t head_stride) {
      return reinterpret_cast<std::uintptr_t>(data) % (2 * sizeof(T)) == 0 && token_stride % 2 == 0 &&
             head_stride % 2 == 0;
    };
    if (args.head_dim % 4 == 0 && in_pairs(args.q, args.q_token_stride, args.q_head_stride) &&
        in_pairs(args.k, args.k_token_stride, args.k_head_stride) &&
        in_pairs(args.v, args.v_token_stride, args.v_head_stride) && in_pairs(args.k_cache, 0, 0) &&
        in_pairs(args.v_cache, 0, 0)) {
      launch<T, 2>(args, num_tasks, stream);
    } else {
      launch<T, 1>(args, num_tasks, stream);
    }
  });
}

}  // namespace tercet::cuda
