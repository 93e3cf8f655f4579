#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// RMSNorm of rows x [num_outer, num_inner, D], strided but for the last dimension, times weight [D] -> out, contiguous.
// With a residual: residual += x, rounded, and that sum is what is normalised.
// The weight may be read before work ahead on the stream is done.
struct RmsNorm {
  Dtype dtype;
  const void* x;
  std::int64_t x_outer_stride, x_inner_stride;
  void* residual;  // or null
  std::int64_t residual_outer_stride, residual_inner_stride;
  const void* weight;
  void* out;
  std::int64_t num_outer;
  int num_inner;
  int dim;
  float eps;
};

// Throws std::runtime_error if it cannot be launched.
void rms_norm(const RmsNorm& args, Stream stream);

}  // namespace tercet::cuda
