// The end of decode attention for tokens of several chunks: their states, maxima [units, H] of (m, l) and o [units, H,
// D], become rows of out [T, H, D].
//
// A row, a token with a head, is a warp's if it has few chunks, and else a block's, whose warps share them: that their
// number alone decides, and so fixes the order of additions. A lane has every 32nd column.
//
// Launched behind decode, so that it starts while the last of that ends. What is launched behind it starts then, too,
// if there is little to merge, and else when decode has ended.
#include "attention_decode.cuh"
#include "dependent_launch.cuh"

namespace tercet::cuda {
namespace {

// So many blocks find room beside those of decode.
constexpr int kFewRows = 256;
// Chunks that a warp loads at once, and all that it takes alone.
constexpr int kAhead = 4;

// What has been seen of a head's context, relative to the maximum.
template <int D>
struct Columns {
  static constexpr int kCount = D / kWarp;
  float maximum = -INFINITY, sum = 0.0f, o[kCount] = {};

  // The maximum becomes `raised`, which is no less and not -inf.
  __device__ void raise(float raised) {
    const float factor = power_of_2(maximum - raised);
    maximum = raised;
    sum *= factor;
#pragma unroll
    for (int j = 0; j < kCount; ++j) o[j] *= factor;
  }

  // Another's, whose maximum is no greater.
  __device__ void add(const Columns& other) {
    const float factor = power_of_2(other.maximum - maximum);
    sum += factor * other.sum;
#pragma unroll
    for (int j = 0; j < kCount; ++j) o[j] += factor * other.o[j];
  }
};

// A row of what is to be merged; without chunks past the last.
struct MergedRow {
  int num_chunks = 0;
  int64_t first = 0;  // the first chunk's state
  int64_t out = 0;    // the row of the result

  __device__ MergedRow(const DecodeArguments& args, int row, int num_rows) {
    if (row >= num_rows) return;
    const MergedToken token = args.plan.merged[row / args.num_heads];
    const int head = row % args.num_heads;
    num_chunks = token.num_chunks;
    first = static_cast<int64_t>(token.first_unit) * args.num_heads + head;
    out = static_cast<int64_t>(token.token) * args.num_heads + head;
  }
};

// A row's chunks from `begin` on, each `step`-th.
template <int D>
__device__ Columns<D> add_chunks(const DecodeArguments& args, const MergedRow& row, int begin, int step) {
  const int lane = threadIdx.x % kWarp;
  Columns<D> all;
  for (int start = begin; start < row.num_chunks; start += step * kAhead) {
    Columns<D> chunks[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      // Past the end the last one is read again and counts nothing: loads behind branches would wait for each other.
      const int chunk = start + i * step, read = min(chunk, row.num_chunks - 1);
      const int64_t place = row.first + static_cast<int64_t>(read) * args.num_heads;
      const float2 maximum_and_sum = args.maxima[place];
      chunks[i].maximum = chunk > read ? -INFINITY : maximum_and_sum.x;
      chunks[i].sum = maximum_and_sum.y;
#pragma unroll
      for (int j = 0; j < Columns<D>::kCount; ++j) chunks[i].o[j] = args.states[place * D + j * kWarp + lane];
    }
    float raised = all.maximum;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) raised = fmaxf(raised, chunks[i].maximum);
    all.raise(raised);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) all.add(chunks[i]);
  }
  return all;
}

template <typename T, int D>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ DecodeArguments args) {
  using Some = Columns<D>;
  __shared__ Some of_warps[kWarps][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, num_blocks = static_cast<int>(gridDim.x);
  // Decode's blocks have all said that they waited for what made the plan.
  const int num_rows = *args.plan.num_merged * args.num_heads;
  if (num_rows <= kFewRows) let_next_kernel_start();
  // A row for each warp where there are more than blocks, else one for all.
  const int at_once = num_rows <= num_blocks ? 1 : kWarps, of_warp = at_once == 1 ? 0 : warp;
  int begin = static_cast<int>(blockIdx.x) * at_once;
  MergedRow own(args, begin + of_warp, num_rows);
  wait_for_kernel_before();
  T* out = static_cast<T*>(args.tensors.out);
  const auto write = [&](const Some& all, const MergedRow& row) {
    const float scale = args.tensors.v_scale / all.sum;
#pragma unroll
    for (int j = 0; j < Some::kCount; ++j) out[row.out * D + j * kWarp + lane] = narrow<T>(all.o[j] * scale);
  };
  while (begin < num_rows) {
    const int next = begin + num_blocks * at_once;
    if (of_warp == warp && own.num_chunks > 0 && own.num_chunks <= kAhead) write(add_chunks<D>(args, own, 0, 1), own);
    if (next >= num_rows) let_next_kernel_start();
    for (int i = 0; i < at_once; ++i) {
      const MergedRow row = at_once == 1 ? own : MergedRow(args, begin + i, num_rows);
      if (row.num_chunks <= kAhead) continue;
      of_warps[warp][lane] = add_chunks<D>(args, row, warp, kWarps);
      __syncthreads();
      if (warp == 0) {
        Some all;
#pragma unroll
        for (int j = 0; j < kWarps; ++j) all.maximum = fmaxf(all.maximum, of_warps[j][lane].maximum);
#pragma unroll
        for (int j = 0; j < kWarps; ++j) all.add(of_warps[j][lane]);
        write(all, row);
      }
      __syncthreads();
    }
    begin = next;
    own = MergedRow(args, begin + of_warp, num_rows);
  }
}

}  // namespace

void merge_chunks(const AttentionShape& shape, const DecodeArguments& args, const AttentionSizes& sizes,
                  Stream stream) {
  if (!sizes.merges) return;
  const dim3 blocks(static_cast<unsigned>(sizes.num_merge_blocks));
  with_heads(shape, [&](auto zero, auto dim) {
    launch_behind(merge_kernel<decltype(zero), dim.value>, blocks, kThreads, 0, stream, args, "attention_merge");
  });
}

}  // namespace tercet::cuda
