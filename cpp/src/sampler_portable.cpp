#include "logprobs_row.h"
#include "sampler_row.h"

namespace tercet {

std::int64_t sample_row_portable(const float* logits, int vocab_size, const SamplingParams& params, float* scratch) {
  return choose(logits, vocab_size, params, scratch);
}

void logprobs_of_row_portable(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                              const LogprobsFound& found) {
  find_logprobs(logits, vocab_size, wanted, width, found);
}

}  // namespace tercet
