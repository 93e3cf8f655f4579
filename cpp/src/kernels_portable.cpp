#define TERCET_SIMD "simd_portable.h"

#include "attention_kernel.h"
#include "elementwise_kernel.h"
#include "linear_kernel.h"
#include "tercet/kernels.h"

namespace tercet {

const Kernels kernels_portable = {linear_share, attend, finish, rms_norm_share, rope_share, gate_mul_share};

}  // namespace tercet
