#include "tercet/sampler.h"

#include <vector>

#include "sampler_isa.h"
#include "tercet/cpu.h"

namespace tercet {
namespace {

using SampleRow = std::int64_t (*)(const float*, int, const SamplingParams&, float*);

SampleRow best_sample_row() {
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

}  // namespace

std::int64_t sample_row(const float* logits, int vocab_size, const SamplingParams& params) {
  static const SampleRow best = best_sample_row();
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(sampler_scratch_size(vocab_size)));
  return best(logits, vocab_size, params, scratch.data());
}

}  // namespace tercet
