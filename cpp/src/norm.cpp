#include "tercet/norm.h"

#include "tercet/kernels.h"

namespace tercet {

void rms_norm(const NormCall& call, Isa isa) {
  const int64_t num_rows = call.num_outer * call.num_inner;
  const auto run = kernels(isa).rms_norm;
  parallel(num_rows * call.dim >= kMinElementsToShare,
           [&](int thread, int num_threads) { run(call, share(num_rows, thread, num_threads)); });
}

}  // namespace tercet
