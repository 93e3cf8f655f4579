#pragma once

#include <cstdint>

#include "dtype.h"
#include "tensor_map.h"

namespace tercet::cuda {

constexpr int kMaxSkinnyRows = 16;

// y [T, N] = x [T, K] W [N, K]^T + b for few rows: bound by reading W once. Hopper only.
//
// The order in which an output's products are added depends on N, K and the number of multiprocessors alone.
class SkinnyLinear {
 public:
  // What `left` must hold, and be zero: for all of a device, as long as they are used on one stream.
  static std::int64_t left_bytes(int num_multiprocessors);

  // f16 or bf16; the weight's rows are `row_stride` elements apart; it, its stride and K are multiples of 16 bytes.
  // Throws std::invalid_argument on another dtype, std::runtime_error on what the copy engine does not take.
  SkinnyLinear(Dtype dtype, const void* weight, std::int64_t row_stride, int num_outputs, int depth, const void* bias,
               void* left, int num_multiprocessors);

  // x [T, K], rows x_stride elements apart, on multiples of 16 bytes -> out, contiguous: y, or if `gated` [T, N / 2],
  // silu(the first half of y) * the second. Of the weight's dtype, or `wide`: float32. Weight and bias may be read
  // before work ahead on the stream is done. Throws std::invalid_argument if T > kMaxSkinnyRows, std::runtime_error if
  // it cannot be launched.
  void multiply(const void* x, std::int64_t x_stride, int num_rows, void* out, bool wide, bool gated,
                Stream stream) const;

 private:
  Dtype dtype_;
  TensorMap weight_;
  const void* bias_;
  void* left_;
  int num_outputs_, depth_, num_multiprocessors_;
};

}  // namespace tercet::cuda
