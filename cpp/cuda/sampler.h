#pragma once

#include <cstdint>

#include "dtype.h"
#include "tercet/sampler.h"

namespace tercet::cuda {

// The token chosen of each row of logits [B, V], float32 and contiguous, by params [B], -> token_ids [B]: what
// tercet/sampler.h defines, exactly. All addresses are on the GPU. Throws std::invalid_argument if V is above
// kMaxVocabulary, std::runtime_error if it cannot be launched.
void sample(const float* logits, int num_rows, int vocab_size, const SamplingParams* params, std::int64_t* token_ids,
            Stream stream);

constexpr int kMaxVocabulary = 1 << 22;

}  // namespace tercet::cuda
