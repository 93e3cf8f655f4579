#include "tercet/kernels.h"

namespace tercet {

const Kernels& kernels(Isa isa) {
  switch (isa) {
#ifdef TERCET_HAVE_AVX512BF16
    case Isa::avx512bf16:
      return kernels_avx512bf16;
#endif
#ifdef TERCET_HAVE_AVX512
    case Isa::avx512:
      return kernels_avx512;
#endif
#ifdef TERCET_HAVE_AVX2
    case Isa::avx2:
      return kernels_avx2;
#endif
    default:
      return kernels_portable;
  }
}

}  // namespace tercet
