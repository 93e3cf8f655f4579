#pragma once

#include <cstdint>

#include "dtype.h"
#include "tercet/logprobs.h"

namespace tercet::cuda {

// Of each row of logits [B, V], float32 and contiguous, with chosen_ids [B] and num_top [B] as LogprobsWanted says ->
// chosen [B], top_ids and top_logprobs [B, width] as LogprobsFound says; to the bit, where both have the same log. All
// addresses are on the GPU. Throws std::invalid_argument if V is above kMaxVocabulary or width above kMaxTopLogprobs,
// std::runtime_error if it cannot be launched.
void logprobs(const float* logits, int num_rows, int vocab_size, const std::int64_t* chosen_ids,
              const std::int32_t* num_top, int width, float* chosen, std::int64_t* top_ids, float* top_logprobs,
              Stream stream);

}  // namespace tercet::cuda
