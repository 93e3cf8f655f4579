// Rows [T, D] -> e4m3 and a scale each, alone or behind RMSNorm or SiLU: what a product of 8-bit numbers reads.
//
// A block takes a row and keeps it in registers between the passes that need all of it (the norm's sum, the largest
// magnitude): 16 bytes of it per thread, or two or four times that. What the row would be without the last step is
// rounded to bfloat16 before it, as if that step were a kernel of its own.
#include "dependent_launch.cuh"
#include "e4m3.cuh"
#include "quantize.h"
#include "silu.cuh"

namespace tercet::cuda {
namespace {

using T = __nv_bfloat16;
using V = Vector<T>;

enum class Behind { nothing, norm, gate };

constexpr int kMaxThreads = 1024;
constexpr int kRescaleThreads = 128;
constexpr int kMaxVectors = kMaxQuantizedDim / (kMaxThreads * V::kSize);
constexpr float kLargest = 448.0f;  // of e4m3
// Below this a row counts as zeros, and its scale is no subnormal.
constexpr float kSmallest = 1e-12f;

struct Arguments : QuantizeRows {
  void* residual;
  std::int64_t residual_stride;
  const void* weight;
  float eps;
  Rescale before;  // the gate
};

// What kOfWarp is over a warp, over the block: of numbers that are not negative, the same bits in every thread. One
// call for each kOfWarp in a kernel.
template <float (*kOfWarp)(float)>
__device__ float of_block(float x) {
  __shared__ float of_warps[kMaxThreads / kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  x = kOfWarp(x);
  if (lane == 0) of_warps[warp] = x;
  __syncthreads();
  return kOfWarp(lane < static_cast<int>(blockDim.x) / kWarp ? of_warps[lane] : 0.0f);
}

__device__ V sum_of(const V& a, const V& b) {
  V sums;
#pragma unroll
  for (int j = 0; j < V::kSize; ++j) sums.at[j] = narrow<T>(widen(a.at[j]) + widen(b.at[j]));
  return sums;
}

// `i`: which vector of its row. Each operation rounds, so that the twin's bits are these.
__device__ V rescaled(V x, float of_row, const Rescale& scales, int i) {
  const auto* factors = reinterpret_cast<const Vector<float>*>(scales.of_outputs) + 2 * i;
  const Vector<float> of_outputs[2] = {factors[0], factors[1]};
  V bias;
  if (scales.bias != nullptr) bias = static_cast<const V*>(scales.bias)[i];
#pragma unroll
  for (int j = 0; j < V::kSize; ++j) {
    float y = __fmul_rn(__fmul_rn(widen(x.at[j]), of_row), of_outputs[j / 4].at[j % 4]);
    if (scales.bias != nullptr) y = __fadd_rn(y, widen(bias.at[j]));
    x.at[j] = narrow<T>(y);
  }
  return x;
}

__device__ V gated(const V& gates, const V& ups) {
  V out;
#pragma unroll
  for (int j = 0; j < V::kSize; ++j) out.at[j] = narrow<T>(silu_times(widen(gates.at[j]), widen(ups.at[j])));
  return out;
}

__device__ uint2 quantized(const V& x, float inverse) {
  union {
    __nv_fp8x2_storage_t pairs[V::kSize / 2];
    uint2 all;
  } out;
#pragma unroll
  for (int j = 0; j < V::kSize; j += 2) {
    const float2 pair = make_float2(widen(x.at[j]) * inverse, widen(x.at[j + 1]) * inverse);
    out.pairs[j / 2] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  return out.all;
}

template <Behind kBehind, int kVectors>
__global__ void __launch_bounds__(kMaxThreads) quantize_kernel(const Arguments args) {
  const std::int64_t row = blockIdx.x;
  const int num_vectors = args.dim / V::kSize;
  const auto* x = reinterpret_cast<const V*>(static_cast<const T*>(args.x) + row * args.x_stride);
  auto* residual = reinterpret_cast<V*>(static_cast<T*>(args.residual) + row * args.residual_stride);

  let_next_kernel_start();
  const V* weight = static_cast<const V*>(args.weight);
  V first_factors;  // most often a thread's only ones; weights need no waiting
  if (kBehind == Behind::norm && threadIdx.x < num_vectors) first_factors = weight[threadIdx.x];

  wait_for_kernel_before();
  V kept[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    if (i >= num_vectors) continue;
    kept[v] = x[i];
    if constexpr (kBehind == Behind::gate) {
      V ups = x[num_vectors + i];
      if (args.before.of_rows != nullptr) {
        const float of_row = args.before.of_rows[row];
        kept[v] = rescaled(kept[v], of_row, args.before, i);
        ups = rescaled(ups, of_row, args.before, num_vectors + i);
      }
      kept[v] = gated(kept[v], ups);
    }
    if (kBehind == Behind::norm && args.residual != nullptr) residual[i] = kept[v] = sum_of(kept[v], residual[i]);
  }
  if constexpr (kBehind == Behind::norm) {
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) sum += widen(kept[v].at[j]) * widen(kept[v].at[j]);
    }
    const float scale = rsqrtf(of_block<warp_sum>(sum) / static_cast<float>(args.dim) + args.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = threadIdx.x + v * blockDim.x;
      if (i >= num_vectors) continue;
      const V factors = v == 0 ? first_factors : weight[i];
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) kept[v].at[j] = narrow<T>(widen(kept[v].at[j]) * scale * widen(factors.at[j]));
    }
  }

  float largest = kSmallest;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) largest = fmaxf(largest, fabsf(widen(kept[v].at[j])));
  }
  largest = of_block<warp_max>(largest);
  const float inverse = kLargest / largest;
  auto* values = reinterpret_cast<uint2*>(static_cast<std::uint8_t*>(args.values) + row * args.dim);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = threadIdx.x + v * blockDim.x;
    if (i < num_vectors) values[i] = quantized(kept[v], inverse);
  }
  if (threadIdx.x == 0) args.scales[row] = largest * (1.0f / kLargest);
}

struct RescaleArguments {
  V* sums;
  int num_vectors;  // of a row
  Rescale scales;
};

// A thread has 16 bytes of a row.
__global__ void __launch_bounds__(kRescaleThreads) rescale_kernel(const RescaleArguments args) {
  const std::int64_t row = blockIdx.x;
  const int i = blockIdx.y * kRescaleThreads + threadIdx.x;
  if (i >= args.num_vectors) return;
  let_next_kernel_start();
  wait_for_kernel_before();
  V& x = args.sums[row * args.num_vectors + i];
  x = rescaled(x, args.scales.of_rows[row], args.scales, i);
}

template <Behind kBehind>
void launch(const Arguments& args, Stream stream, const char* name) {
  if (args.dim % V::kSize || args.dim < V::kSize || args.dim > kMaxQuantizedDim)
    throw std::invalid_argument(std::string(name) + ": no kernel for rows of " + std::to_string(args.dim));
  if (args.num_rows == 0) return;
  const int num_vectors = args.dim / V::kSize;
  const int wanted = (num_vectors + kWarp - 1) / kWarp * kWarp;
  const int num_threads = wanted < kMaxThreads ? wanted : kMaxThreads;
  const int of_thread = (num_vectors + num_threads - 1) / num_threads;
  static_assert(kMaxVectors == 4);
  const auto kernel = of_thread == 1   ? quantize_kernel<kBehind, 1>
                      : of_thread == 2 ? quantize_kernel<kBehind, 2>
                                       : quantize_kernel<kBehind, kMaxVectors>;
  launch_behind(kernel, dim3(static_cast<unsigned>(args.num_rows)), num_threads, 0, stream, args, name);
}

}  // namespace

void quantize_rows(const QuantizeRows& args, Stream stream) {
  launch<Behind::nothing>({args, nullptr, 0, nullptr, 0.0f, {}}, stream, "quantize_rows");
}

void rms_norm_quantized(const QuantizeRows& args, void* residual, std::int64_t residual_stride, const void* weight,
                        float eps, Stream stream) {
  launch<Behind::norm>({args, residual, residual_stride, weight, eps, {}}, stream, "rms_norm_quantized");
}

void silu_mul_quantized(const QuantizeRows& args, const Rescale& scales, Stream stream) {
  launch<Behind::gate>({args, nullptr, 0, nullptr, 0.0f, scales}, stream, "silu_mul_quantized");
}

void rescale(void* sums, std::int64_t num_rows, int num_outputs, const Rescale& scales, Stream stream) {
  if (num_outputs % V::kSize)
    throw std::invalid_argument("rescale: no kernel for rows of " + std::to_string(num_outputs));
  if (num_rows == 0 || num_outputs == 0) return;
  const int num_vectors = num_outputs / V::kSize;
  const dim3 blocks(static_cast<unsigned>(num_rows),
                    static_cast<unsigned>((num_vectors + kRescaleThreads - 1) / kRescaleThreads));
  launch_behind(rescale_kernel, blocks, kRescaleThreads, 0, stream,
                RescaleArguments{static_cast<V*>(sums), num_vectors, scales}, "rescale");
}

}  // namespace tercet::cuda
