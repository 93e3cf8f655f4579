// Choosing a token of a row of logits, without a sort.
//
// With l the logits, m their maximum and T the temperature, all in float32 and each operation rounded on its own:
//   greedy  T = 0: the largest logit, the lowest id among equals. Otherwise
//   z       (l - m) / T, so that z <= 0 and exp(z) is a probability up to a common factor
//   rank    by (z descending, id ascending); every filter below keeps a beginning of this order, so one (z, id) cuts
//   min_p   keeps z >= float32(log(min_p))
//   top_k   keeps the first k
//   top_p   keeps the shortest beginning whose mass is >= top_p of what min_p and top_k kept; never empty
//   draw    argmax of float64(z) + noise (philox.h), the lowest id among equals
// Mass is a sum of integers, weight(z) = trunc(2^40 * exp(z)), and therefore the same in any order of summation and on
// any device. What is below -28 counts as -28, where weight is 0. With n = round_half_even(z * float32(log2 e)) and
// r = (z - n * 0.693359375) - n * -2.1219444e-4 (log 2 in two parts, the first product is exact), exp(r) is its Taylor
// polynomial of degree 7 by Horner's rule, coefficients rounded to float32, and weight = trunc(exp(r) * 2^(n + 40)).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tercet {

// 32 bytes, at a multiple of 8; packed by worker/ops/sampler.py. On a GPU the end of a step advances `position`.
struct SamplingParams {
  float temperature;      // at 0: >= 0; 0: greedy
  std::int32_t top_k;     // at 4: <= 0: off
  float top_p;            // at 8: >= 1: off
  float min_p;            // at 12: <= 0: off
  std::uint64_t seed;     // at 16
  std::int64_t position;  // at 24: of the token being chosen
};
static_assert(sizeof(SamplingParams) == 32 && alignof(SamplingParams) == 8);
static_assert(offsetof(SamplingParams, position) == 24);

// The token id chosen of logits [V], or nothing that can be chosen: -1 if a logit is NaN or +inf, or all are -inf.
// Depends on its arguments alone. `scratch` has sampler_scratch_floats(V) elements and comes back with any content.
using SampleRow = std::int64_t (*)(const float* logits, int vocab_size, const SamplingParams& params, float* scratch);

int sampler_scratch_floats(int vocab_size);

// sample_row for the best instruction set here; all give the same result to the bit. Throws as detect_isa() does.
SampleRow row_sampler();

}  // namespace tercet
