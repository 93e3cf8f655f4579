// SiLU of the gate times the up projection.
#pragma once

#include <cstdint>

#include "tercet/cpu.h"
#include "tercet/linear.h"

namespace tercet {

struct SiluMulCall {
  Dtype dtype;
  const void* gate_up;  // rows of 2 * dim elements, gate first, `row_stride` elements apart
  int64_t row_stride;
  void* out;  // [num_rows, dim], contiguous
  int64_t num_rows;
  int64_t dim;
};

void silu_mul(const SiluMulCall& call, Isa isa);

}  // namespace tercet
