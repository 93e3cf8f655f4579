// The instruction sets that rows of logits are sampled and measured with.
#pragma once

#include <cstdint>

#include "tercet/logprobs.h"
#include "tercet/sampler.h"

namespace tercet {

// Tokens per strip. A loop of up to 16 rounds, such as one over the strip's counters would be with 64, is unrolled by
// GCC before it could be vectorised.
constexpr int kSamplerStrip = 128;

// Floats of scratch for a row: V, rounded up to whole strips.
constexpr int sampler_scratch_size(int vocab_size) {
  return (vocab_size + kSamplerStrip - 1) / kSamplerStrip * kSamplerStrip;
}

// Each a SampleRow.
std::int64_t sample_row_portable(const float* logits, int vocab_size, const SamplingParams& params, float* scratch);
std::int64_t sample_row_avx2(const float* logits, int vocab_size, const SamplingParams& params, float* scratch);
std::int64_t sample_row_avx512(const float* logits, int vocab_size, const SamplingParams& params, float* scratch);

// Each a LogprobsOfRow.
void logprobs_of_row_portable(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                              const LogprobsFound& found);
void logprobs_of_row_avx2(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                          const LogprobsFound& found);
void logprobs_of_row_avx512(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                            const LogprobsFound& found);

}  // namespace tercet
