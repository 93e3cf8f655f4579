// RMSNorm, alone or after a residual sum.
#pragma once

#include <cstdint>

#include "tercet/cpu.h"
#include "tercet/linear.h"

namespace tercet {

// Rows [outer, inner] of `dim` contiguous elements; strides in elements. `residual` may be null.
struct NormCall {
  Dtype dtype;
  const void* x;
  int64_t x_outer_stride, x_inner_stride;
  void* residual;
  int64_t residual_outer_stride, residual_inner_stride;
  const void* weight;  // [dim]
  void* out;           // contiguous
  int64_t num_outer, num_inner;
  int64_t dim;
  float eps;
};

// With a residual: residual += x, rounded to its type, and the sum is what is normalised. Sums in float32, in an order
// that depends on `dim` alone.
void rms_norm(const NormCall& call, Isa isa);

}  // namespace tercet
