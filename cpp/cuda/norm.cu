// RMSNorm of x [R, D] (+ residual [R, D], in place) -> out [R, D].
//
// A row belongs to one group of threads: a warp for short rows (heads, D <= 512), up to 1024 threads for long ones
// (hidden states). How many depends on D alone, and sums are taken in a fixed order, so that a row's result does not
// depend on the rows beside it. 16 bytes a thread. Of usual rows (kOnce) a thread has one such part at most and keeps
// it; of longer ones the second pass finds the rest in L1.
#include "dependent_launch.cuh"
#include "kernel.cuh"
#include "norm.h"

namespace tercet::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kShortRow = 512;
constexpr int kWarpsOfShortRows = 4;

struct Arguments : RmsNorm {
  int num_threads;  // of a row: a warp, or the whole block
};

// f(i) for each of the thread's vectors.
template <bool kOnce, typename F>
__device__ void for_vectors(int thread, int num_threads, int num_vectors, F f) {
  if constexpr (kOnce) {
    if (thread < num_vectors) f(thread);
  } else {
    for (int i = thread; i < num_vectors; i += num_threads) f(i);
  }
}

template <typename T, typename V, bool kOnce>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kernel(const Arguments args) {
  constexpr int kSize = sizeof(V) / sizeof(T);
  const int rows_of_block = blockDim.x / args.num_threads, thread = threadIdx.x % args.num_threads;
  const unsigned row = blockIdx.x * rows_of_block + threadIdx.x / args.num_threads;
  if (row >= args.num_outer * args.num_inner) return;  // whole warps: groups of more than one are alone in their block
  const std::int64_t outer = row / static_cast<unsigned>(args.num_inner), inner = row - outer * args.num_inner;
  const int num_vectors = args.dim / kSize;
  const auto* x = reinterpret_cast<const V*>(static_cast<const T*>(args.x) + outer * args.x_outer_stride +
                                             inner * args.x_inner_stride);
  V* sums = nullptr;
  if (args.residual != nullptr) {
    sums = reinterpret_cast<V*>(static_cast<T*>(args.residual) + outer * args.residual_outer_stride +
                                inner * args.residual_inner_stride);
  }

  let_next_kernel_start();
  const V* weight = static_cast<const V*>(args.weight);
  V first, first_factors;  // of the thread's vectors, most often its only one; weights need no waiting
  if (thread < num_vectors) first_factors = weight[thread];

  wait_for_kernel_before();
  float sum = 0.0f;
  for_vectors<kOnce>(thread, args.num_threads, num_vectors, [&](int i) {
    V here = x[i];
    T* values = reinterpret_cast<T*>(&here);
    if (sums != nullptr) {
      const V before = sums[i];
      const T* addends = reinterpret_cast<const T*>(&before);
#pragma unroll
      for (int j = 0; j < kSize; ++j) values[j] = narrow<T>(widen(values[j]) + widen(addends[j]));
      sums[i] = here;
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum += widen(values[j]) * widen(values[j]);
    if (kOnce || i == thread) first = here;
  });
  sum = warp_sum(sum);
  if (args.num_threads > kWarp) {
    __shared__ float of_warps[kMaxThreads / kWarp];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    if (lane == 0) of_warps[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < static_cast<int>(blockDim.x) / kWarp ? of_warps[lane] : 0.0f);
  }
  const float scale = rsqrtf(sum / static_cast<float>(args.dim) + args.eps);

  const V* from = sums != nullptr ? sums : x;
  V* out = reinterpret_cast<V*>(static_cast<T*>(args.out) + static_cast<std::int64_t>(row) * args.dim);
  for_vectors<kOnce>(thread, args.num_threads, num_vectors, [&](int i) {
    V here = kOnce || i == thread ? first : from[i];
    const V factors = kOnce || i == thread ? first_factors : weight[i];
    T* values = reinterpret_cast<T*>(&here);
    const T* weights = reinterpret_cast<const T*>(&factors);
#pragma unroll
    for (int j = 0; j < kSize; ++j) values[j] = narrow<T>(widen(values[j]) * scale * widen(weights[j]));
    out[i] = here;
  });
}

template <typename T, typename V>
void launch(const RmsNorm& args, Stream stream) {
  const std::int64_t num_rows = args.num_outer * args.num_inner;
  const int num_vectors = args.dim / static_cast<int>(sizeof(V) / sizeof(T));
  int num_threads = kWarp, rows_of_block = kWarpsOfShortRows;
  if (args.dim > kShortRow) {
    const int wanted = (num_vectors + kWarp - 1) / kWarp * kWarp;
    num_threads = wanted < kMaxThreads ? wanted : kMaxThreads;
    rows_of_block = 1;
  }
  const auto num_blocks = static_cast<unsigned>((num_rows + rows_of_block - 1) / rows_of_block);
  auto* kernel = num_vectors <= num_threads ? rms_norm_kernel<T, V, true> : rms_norm_kernel<T, V, false>;
  launch_behind(kernel, dim3(num_blocks), num_threads * rows_of_block, 0, stream, Arguments{args, num_threads},
                "rms_norm");
}

}  // namespace

void rms_norm(const RmsNorm& args, Stream stream) {
  if (args.num_outer * args.num_inner == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = Vector<T>::kSize;
    const bool in_vectors = args.dim % kSize == 0 && args.x_outer_stride % kSize == 0 &&
                            args.x_inner_stride % kSize == 0 && args.residual_outer_stride % kSize == 0 &&
                            args.residual_inner_stride % kSize == 0 && is_aligned(args.x) &&
                            is_aligned(args.residual) && is_aligned(args.weight) && is_aligned(args.out);
    if (in_vectors) {
      launch<T, Vector<T>>(args, stream);
    } else {
      launch<T, T>(args, stream);
    }
  });
}

}  // namespace tercet::cuda
