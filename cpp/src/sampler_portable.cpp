#include "sampler_row.h"

namespace tercet {

std::int64_t sample_row_portable(const float* logits, int vocab_size, const SamplingParams& params, float* scratch) {
  return choose(logits, vocab_size, params, scratch);
}

}  // namespace tercet
