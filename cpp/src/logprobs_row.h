// Logprobs of a row for one instruction set: included by each sampler_<isa>.cpp, under the rules of sampler_row.h.
#pragma once

#include <cstddef>

#include "sampler_row.h"
#include "tercet/logprobs.h"

namespace tercet {
namespace {

// The first `size` tokens by (z descending, id ascending) of those it was shown, which must come in order of ids.
struct Top {
  int size;
  int count = 0;
  float z[kMaxTopLogprobs] = {};
  int ids[kMaxTopLogprobs] = {};

  bool takes_any(const float* strip) const {
    if (count < size) return true;
    const float low = size > 0 ? z[size - 1] : kInfinity;
    std::int32_t any = 0;
    for (int j = 0; j < kStrip; ++j) any |= strip[j] > low ? 1 : 0;
    return any != 0;
  }

  void show(float z_of_it, int id) {
    if (count == size && !(z_of_it > z[size - 1])) return;
    int at = count < size ? count++ : size - 1;
    for (; at > 0 && z[at - 1] < z_of_it; --at) {
      z[at] = z[at - 1];
      ids[at] = ids[at - 1];
    }
    z[at] = z_of_it;
    ids[at] = id;
  }
};

void find_logprobs(const float* logits, int vocab_size, const LogprobsWanted& wanted, int width,
                   const LogprobsFound& found) {
  constexpr float kNothing = __builtin_nanf("");
  *found.chosen = kNothing;
  for (int i = 0; i < width; ++i) {
    found.token_ids[i] = -1;
    found.logprobs[i] = kNothing;
  }
  if (wanted.num_top < 0) return;
  const Peak peak = find_peak(logits, vocab_size);
  if (!peak.usable) return;

  Top top{wanted.num_top < vocab_size ? wanted.num_top : vocab_size};
  std::int64_t sums[kStrip] = {};
  for (int first = 0; first < vocab_size; first += kStrip) {
    const int size = vocab_size - first < kStrip ? vocab_size - first : kStrip;
    float z[kStrip];
    std::int64_t weights[kStrip];
    for (float& x : z) x = -kInfinity;
    __builtin_memcpy(z, logits + first, static_cast<std::size_t>(size) * sizeof(float));
    for (int j = 0; j < kStrip; ++j) z[j] -= peak.value;
    weigh(z, weights);
    for (int j = 0; j < kStrip; ++j) sums[j] += weights[j];
    if (!top.takes_any(z)) continue;
    for (int j = 0; j < size; ++j) top.show(z[j], first + j);
  }
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) total += sum;

  const double log_total = ::log(static_cast<double>(total) * 0x1p-40);
  const auto logprob = [&](float z) { return static_cast<float>(static_cast<double>(z) - log_total); };
  if (wanted.token_id >= 0) *found.chosen = logprob(logits[wanted.token_id] - peak.value);
  for (int i = 0; i < top.count; ++i) {
    found.token_ids[i] = top.ids[i];
    found.logprobs[i] = logprob(top.z[i]);
  }
}

}  // namespace
}  // namespace tercet
