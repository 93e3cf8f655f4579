#include "tercet/activation.h"

#include "tercet/kernels.h"

namespace tercet {

void gate_mul(const GateMulCall& call, Isa isa) {
  const auto run = kernels(isa).gate_mul;
  parallel(call.num_rows * call.dim >= kMinElementsToShare, call.num_rows, row_grain(call.dim),
           [&](Range rows) { run(call, rows); });
}

}  // namespace tercet
