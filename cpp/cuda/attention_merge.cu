// The end of decode attention for tokens of several chunks: their states, maxima [units, H] of (m, l) and o [units, H,
// D], become rows of out [T, H, D].
//
// A block has a token and a head, its warps share the chunks and a lane has D / 32 columns. Which warp adds what is
// fixed by the number of chunks alone. Launched behind decode, so that it starts while the last of that ends.
#include "attention_decode.cuh"
#include "dependent_launch.cuh"

namespace tercet::cuda {
namespace {

// Of so few tokens decode leaves the GPU room, in which the next kernel may begin with what it needs no result for. Of
// more, its blocks would only be spread unevenly, into whatever room comes up.
constexpr unsigned kFewTokens = 16;

template <typename T, int D>
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ DecodeArguments args) {
  constexpr int kColumns = D / kWarp, kAhead = 4;
  __shared__ float2 of_warps[kWarps];  // the maximum and the sum
  __shared__ float parts[kWarps][D];
  if (gridDim.x <= kFewTokens) let_next_kernel_start();
  // Decode's blocks have all said that they waited for what made the plan.
  const MergedToken token = args.plan.merged[blockIdx.x];
  wait_for_kernel_before();
  if (token.num_chunks <= 1) return;
  const int head = blockIdx.y, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = static_cast<int64_t>(token.first_unit) * args.num_heads + head;

  float maximum = -INFINITY, sum = 0.0f, o[kColumns] = {};
  for (int start = warp; start < token.num_chunks; start += kWarps * kAhead) {
    float2 of_chunks[kAhead];
    float states[kAhead][kColumns];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      // Past the end the last one is read again and counts nothing.
      const int chunk = start + i * kWarps, read = min(chunk, token.num_chunks - 1);
      const int64_t row = first + static_cast<int64_t>(read) * args.num_heads;
      of_chunks[i] = args.maxima[row];
      if (chunk > read) of_chunks[i].x = -INFINITY;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        states[i][column] = args.states[row * D + column * kWarp + lane];
      }
    }
    float raised = maximum;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) raised = fmaxf(raised, of_chunks[i].x);
    const float before = power_of_2(maximum - raised);
    maximum = raised;
    sum *= before;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) o[column] *= before;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float factor = power_of_2(of_chunks[i].x - maximum);
      sum += factor * of_chunks[i].y;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) o[column] += factor * states[i][column];
    }
  }
  if (lane == 0) of_warps[warp] = {maximum, sum};
#pragma unroll
  for (int column = 0; column < kColumns; ++column) parts[warp][column * kWarp + lane] = o[column];
  __syncthreads();
  T* out = static_cast<T*>(args.tensors.out) + (static_cast<int64_t>(token.token) * args.num_heads + head) * D;
  for (int column = threadIdx.x; column < D; column += kThreads) {
    float greatest = -INFINITY, total = 0.0f, all = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) greatest = fmaxf(greatest, of_warps[i].x);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float factor = power_of_2(of_warps[i].x - greatest);
      total += factor * of_warps[i].y;
      all += factor * parts[i][column];
    }
    out[column] = narrow<T>(all * args.tensors.v_scale / total);
  }
}

}  // namespace

void merge_chunks(const AttentionShape& shape, const DecodeArguments& args, const AttentionSizes& sizes,
                  Stream stream) {
  if (!sizes.merges) return;
  const dim3 blocks(static_cast<unsigned>(sizes.num_merged), shape.num_heads);
  with_heads(shape, [&](auto zero, auto dim) {
    launch_behind(merge_kernel<decltype(zero), dim.value>, blocks, kThreads, 0, stream, args, "attention_merge");
  });
}

}  // namespace tercet::cuda
