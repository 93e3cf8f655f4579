#pragma once

#include <cstdint>

#include "dtype.h"
#include "tercet/penalties.h"

namespace tercet::cuda {

// Changes logits [B, V], float32 and contiguous, in place by rows [B] and what these refer to: what tercet/penalties.h
// defines, to the bit. Throws std::runtime_error if it cannot be launched.
void penalize(float* logits, int num_rows, int vocab_size, const PenaltyRow* rows, const PenaltyToken* tokens,
              const std::uint32_t* masks, Stream stream);

// Takes note of token_ids [B] in rows [B] and their tokens, as tercet/penalties.h says. Throws as `penalize`.
void count_drawn(const std::int64_t* token_ids, int num_rows, PenaltyRow* rows, PenaltyToken* tokens, Stream stream);

}  // namespace tercet::cuda
