#include "tercet/norm.h"

#include "tercet/kernels.h"

namespace tercet {

void rms_norm(const NormCall& call, Isa isa) {
  const int64_t num_rows = call.num_outer * call.num_inner;
  const auto run = kernels(isa).rms_norm;
  parallel(num_rows * call.dim >= kMinElementsToShare, num_rows, row_grain(call.dim),
           [&](Range rows) { run(call, rows); });
}

}  // namespace tercet
