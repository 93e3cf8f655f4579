#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// gate_up [T, 2I], rows `row_stride` apart, gate first -> silu(gate) * up [T, I], contiguous. In float32, rounded once.
// Throws std::runtime_error if it cannot be launched.
void silu_mul(Dtype dtype, const void* gate_up, std::int64_t row_stride, void* out, std::int64_t num_rows, int dim,
              Stream stream);

}  // namespace tercet::cuda
