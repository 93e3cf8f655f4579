// An activation of the gate times the up projection.
#pragma once

#include <cstdint>

#include "tercet/cpu.h"
#include "tercet/linear.h"

namespace tercet {

// As worker/ops/activation.py numbers them.
enum class Activation { silu = 0, gelu_tanh = 1 };

struct GateMulCall {
  Dtype dtype;
  Activation activation;
  const void* gate_up;  // rows of 2 * dim elements, gate first, `row_stride` elements apart
  int64_t row_stride;
  void* out;  // [num_rows, dim], contiguous
  int64_t num_rows;
  int64_t dim;
};

void gate_mul(const GateMulCall& call, Isa isa);

}  // namespace tercet
