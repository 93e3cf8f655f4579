// Logarithms of the probabilities that raw logits give: of the token that was chosen and of the likeliest ones.
//
//   z        l - m in float32, with l the logits and m their maximum
//   total    sum of weight(z) of sampler.h over the vocabulary: integers, so the same in any order and on any device
//   logprob  float32(float64(z) - log(float64(total) * 2^-40))
// What weight leaves out, below e^-28 of the peak and in its last bits, is less than float32 shows.
#pragma once

#include <cstdint>

namespace tercet {

constexpr int kMaxTopLogprobs = 20;

// Of one row: the token that was chosen, or below 0 for none, and how many of the likeliest tokens are wanted: below 0
// for nothing at all, not even the chosen one's.
struct LogprobsWanted {
  std::int64_t token_id;
  std::int32_t num_top;
};

// Where the result of one row goes: `width` likeliest tokens by (z descending, id ascending).
// What there is not, or is not wanted, is NaN and id -1; so is all of a row with a NaN or +inf, or nothing but -inf.
struct LogprobsFound {
  float* chosen;            // [1]
  std::int64_t* token_ids;  // [width]
  float* logprobs;          // [width]
};

// Reads logits [V]; num_top <= width <= kMaxTopLogprobs.
using LogprobsOfRow = void (*)(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                               const LogprobsFound& found);

// The best for the instruction set here; all give the same result to the bit. Throws as detect_isa() does.
LogprobsOfRow row_logprobs();

}  // namespace tercet
