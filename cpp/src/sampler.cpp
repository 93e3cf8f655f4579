#include "tercet/sampler.h"

#include "sampler_isa.h"
#include "tercet/cpu.h"

namespace tercet {

int sampler_scratch_floats(int vocab_size) { return sampler_scratch_size(vocab_size); }

SampleRow row_sampler() {
  switch (detect_isa()) {
#ifdef TERCET_HAVE_AVX512
    case Isa::avx512bf16:
    case Isa::avx512:
      return sample_row_avx512;
#endif
#ifdef TERCET_HAVE_AVX2
    case Isa::avx2:
      return sample_row_avx2;
#endif
    default:
      return sample_row_portable;
  }
}

LogprobsOfRow row_logprobs() {
  switch (detect_isa()) {
#ifdef TERCET_HAVE_AVX512
    case Isa::avx512bf16:
    case Isa::avx512:
      return logprobs_of_row_avx512;
#endif
#ifdef TERCET_HAVE_AVX2
    case Isa::avx2:
      return logprobs_of_row_avx2;
#endif
    default:
      return logprobs_of_row_portable;
  }
}

}  // namespace tercet
