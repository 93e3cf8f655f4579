#include "tercet/activation.h"

#include "tercet/kernels.h"

namespace tercet {

void silu_mul(const SiluMulCall& call, Isa isa) {
  const auto run = kernels(isa).silu_mul;
  parallel(call.num_rows * call.dim >= kMinElementsToShare,
           [&](int thread, int num_threads) { run(call, share(call.num_rows, thread, num_threads)); });
}

}  // namespace tercet
