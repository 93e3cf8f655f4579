// gate_up [T, 2I] -> activation(gate) * up [T, I].
//
// A block per row and run of columns, 16 bytes a thread: three streams of memory and nothing else.
#include "activation.h"
#include "dependent_launch.cuh"
#include "kernel.cuh"
#include "silu.cuh"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 256;

struct Arguments {
  const void* gate_up;
  std::int64_t row_stride;
  void* out;
  int num_vectors;
};

template <Activation kActivation>
__device__ float gated(float gate, float up) {
  if constexpr (kActivation == Activation::silu) return silu_times(gate, up);
  // GELU by tanh is gate * sigmoid(twice the argument of tanh).
  constexpr float kTwice = 2 * 0.7978845608f;  // of the root of 2 / pi
  return gate / (1.0f + __expf(-gate * fmaf(gate * gate, kTwice * 0.044715f, kTwice))) * up;
}

template <typename T, typename V, Activation kActivation>
__global__ void __launch_bounds__(kThreads) gate_mul_kernel(const Arguments args) {
  constexpr int kSize = sizeof(V) / sizeof(T);
  const int i = blockIdx.y * kThreads + threadIdx.x, num_vectors = args.num_vectors;
  if (i >= num_vectors) return;
  let_next_kernel_start();
  wait_for_kernel_before();
  const auto* row = reinterpret_cast<const V*>(static_cast<const T*>(args.gate_up) + blockIdx.x * args.row_stride);
  V gates = row[i];
  const V ups = row[num_vectors + i];
  T* gate = reinterpret_cast<T*>(&gates);
  const T* up = reinterpret_cast<const T*>(&ups);
#pragma unroll
  for (int j = 0; j < kSize; ++j) gate[j] = narrow<T>(gated<kActivation>(widen(gate[j]), widen(up[j])));
  static_cast<V*>(args.out)[static_cast<std::int64_t>(blockIdx.x) * num_vectors + i] = gates;
}

template <typename T, typename V, Activation kActivation>
void launch(const void* gate_up, std::int64_t row_stride, void* out, std::int64_t num_rows, int dim, Stream stream) {
  const int num_vectors = dim / static_cast<int>(sizeof(V) / sizeof(T));
  const dim3 blocks(static_cast<unsigned>(num_rows), static_cast<unsigned>((num_vectors + kThreads - 1) / kThreads));
  launch_behind(gate_mul_kernel<T, V, kActivation>, blocks, kThreads, 0, stream,
                Arguments{gate_up, row_stride, out, num_vectors}, "gate_mul");
}

template <Activation kActivation>
void launch(Dtype dtype, const void* gate_up, std::int64_t row_stride, void* out, std::int64_t num_rows, int dim,
            Stream stream) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = Vector<T>::kSize;
    if (dim % kSize == 0 && row_stride % kSize == 0 && is_aligned(gate_up) && is_aligned(out)) {
      launch<T, Vector<T>, kActivation>(gate_up, row_stride, out, num_rows, dim, stream);
    } else {
      launch<T, T, kActivation>(gate_up, row_stride, out, num_rows, dim, stream);
    }
  });
}

}  // namespace

void gate_mul(Dtype dtype, Activation activation, const void* gate_up, std::int64_t row_stride, void* out,
              std::int64_t num_rows, int dim, Stream stream) {
  if (num_rows == 0 || dim == 0) return;
  const auto launch_for = activation == Activation::silu ? launch<Activation::silu> : launch<Activation::gelu_tanh>;
  launch_for(dtype, gate_up, row_stride, out, num_rows, dim, stream);
}

}  // namespace tercet::cuda
