#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// As worker/ops/activation.py numbers them.
enum class Activation { silu = 0, gelu_tanh = 1 };

// gate_up [T, 2I], rows `row_stride` apart, gate first -> activation(gate) * up [T, I], contiguous. In float32, rounded
// once. Throws std::runtime_error if it cannot be launched.
void gate_mul(Dtype dtype, Activation activation, const void* gate_up, std::int64_t row_stride, void* out,
              std::int64_t num_rows, int dim, Stream stream);

}  // namespace tercet::cuda
