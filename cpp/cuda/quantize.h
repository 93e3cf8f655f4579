#pragma once

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

// Rows of bfloat16 [T, D] as e4m3 `values` [T, D], contiguous, and one float32 a row in `scales` [T]: scale * value is
// the row again, and its largest magnitude is a value of 448. D is a multiple of 8 and at most kMaxQuantizedDim; rows
// are `x_stride` elements apart and begin, as all else here, on 16 bytes (values on 8).
// A row with an infinity or NaN has a NaN among its values.
struct QuantizeRows {
  const void* x;
  std::int64_t x_stride;
  void* values;
  float* scales;
  std::int64_t num_rows;
  int dim;
};

constexpr int kMaxQuantizedDim = 32768;

// All throw std::invalid_argument on a D they do not have, std::runtime_error if they cannot be launched.

void quantize_rows(const QuantizeRows& args, Stream stream);

// Of what rms_norm (norm.h) gives for these rows, rounded to bfloat16 first. `residual` [T, D] may be null.
// The weight may be read before work ahead on the stream is done.
void rms_norm_quantized(const QuantizeRows& args, void* residual, std::int64_t residual_stride, const void* weight,
                        float eps, Stream stream);

// What sums of products of values lack, a factor for each row [T] and each output [N], and then a bias [N] in bfloat16
// or none. Without `of_rows` they lack nothing. All are read where sums are, 16 bytes at once.
struct Rescale {
  const float* of_rows;
  const float* of_outputs;
  const void* bias;
};

// Of what gate_mul (activation.h) gives with silu for gate_up [T, 2D] in the place of x, rounded to bfloat16 first, and
// before that `rescale`d.
void silu_mul_quantized(const QuantizeRows& args, const Rescale& scales, Stream stream);

// sums [T, N] of bfloat16, contiguous, N a multiple of 8: sums * of_rows * of_outputs + bias in place, in float32.
// Factors of outputs and bias may be read before work ahead on the stream is done.
void rescale(void* sums, std::int64_t num_rows, int num_outputs, const Rescale& scales, Stream stream);

}  // namespace tercet::cuda
