// Paged attention the plain way, for what the other kernels do not take (float32, unusual head and block sizes):
// q [T, H, D], k_cache, v_cache [N, G, S, D] -> out [T, H, D], D up to 256. A warp has a token and a head: 32 keys at a
// time, a lane's score each, then a lane has every 32nd column of the result. All sums are in float32.
#include "attention.h"
#include "kernel.cuh"

namespace tercet::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;

struct SimpleArguments {
  AttentionShape shape;
  AttentionRows rows;
  AttentionTensors tensors;
};

// The sequence that `token` belongs to, if any: the last that starts at or before it.
__device__ int sequence_of(const AttentionRows& rows, int token) {
  int low = 0, high = rows.num_sequences - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (rows.query_starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) simple_kernel(SimpleArguments args) {
  constexpr int kColumns = kMaxHeadDim / kWarp;
  __shared__ float queries[kWarps][kMaxHeadDim];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int num_heads = args.shape.num_heads, dim = args.shape.head_dim, slots = args.shape.block_size;
  if (row >= static_cast<int64_t>(args.rows.num_tokens) * num_heads) return;
  const int token = static_cast<int>(row / num_heads), head = static_cast<int>(row % num_heads);
  const int kv_head = head / (num_heads / args.shape.num_kv_heads);
  const int sequence = sequence_of(args.rows, token);
  const int* table = args.rows.block_tables + static_cast<int64_t>(sequence) * args.rows.table_width;
  const int context = min(args.rows.context_lens[sequence], args.rows.table_width * slots) -
                      (args.rows.query_starts[sequence + 1] - 1 - token);
  if (args.rows.query_starts[sequence + 1] <= token || context <= 0) return;  // padding
  const int first = args.shape.window == 0 ? 0 : max(0, context - args.shape.window);
  const float cap = args.tensors.softcap;
  const auto offset_of = [&](int position) {
    const int64_t block =
        min(static_cast<unsigned>(table[position / slots]), static_cast<unsigned>(args.shape.num_blocks - 1));
    return ((block * args.shape.num_kv_heads + kv_head) * slots + position % slots) * dim;
  };

  const T* q =
      static_cast<const T*>(args.tensors.q) + token * args.tensors.q_token_stride + head * args.tensors.q_head_stride;
  float* query = queries[warp];
  for (int d = lane; d < dim; d += kWarp) query[d] = widen(q[d]) * args.tensors.scale;
  __syncwarp();

  float maximum = -INFINITY, sum = 0.0f, o[kColumns] = {};
  for (int start = first; start < context; start += kWarp) {
    const int position = start + lane;
    float score = -INFINITY;
    int64_t offset = 0;
    if (position < context) {
      offset = offset_of(position);
      const T* key = static_cast<const T*>(args.tensors.k_cache) + offset;
      score = 0.0f;
      for (int d = 0; d < dim; ++d) score = fmaf(query[d], widen(key[d]), score);
      if (cap > 0.0f) score = cap * tanhf(score / cap);
    }
    const float raised = fmaxf(maximum, warp_max(score)), factor = expf(maximum - raised);
    const float weight = position < context ? expf(score - raised) : 0.0f;
    maximum = raised;
    sum = sum * factor + warp_sum(weight);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) o[i] *= factor;
    const int here = min(kWarp, context - start);
    for (int j = 0; j < here; ++j) {
      const float weight_of_key = __shfl_sync(0xffffffffu, weight, j);
      const T* value = static_cast<const T*>(args.tensors.v_cache) + __shfl_sync(0xffffffffu, offset, j);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int d = i * kWarp + lane;
        if (d < dim) o[i] = fmaf(weight_of_key, widen(value[d]), o[i]);
      }
    }
  }
  T* out = static_cast<T*>(args.tensors.out) + row * dim;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int d = i * kWarp + lane;
    if (d < dim) out[d] = narrow<T>(o[i] / sum);
  }
}

}  // namespace

void attention_simple(const AttentionShape& shape, const AttentionRows& rows, const AttentionTensors& tensors,
                      Stream stream) {
  const std::int64_t num_rows = static_cast<std::int64_t>(rows.num_tokens) * shape.num_heads;
  if (num_rows == 0) return;
  if (shape.head_dim > kMaxHeadDim) {
    throw std::invalid_argument("no attention for head size " + std::to_string(shape.head_dim));
  }
  const SimpleArguments args{shape, rows, tensors};
  with_type(shape.dtype, [&](auto zero) {
    simple_kernel<decltype(zero)>
        <<<static_cast<unsigned>((num_rows + kWarps - 1) / kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("attention_simple");
}

}  // namespace tercet::cuda
