// sample_row for one instruction set: included by each sampler_<isa>.cpp. Everything has internal linkage and nothing
// comes from std:: templates, whose out-of-line copies the linker would share between instruction sets.
#pragma once

#include <math.h>

#include <cassert>
#include <cstdint>

#include "sampler_isa.h"
#include "tercet/philox.h"
#include "tercet/sampler.h"

namespace tercet {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

// Loops over a strip have a constant count and no order between lanes, so that compilers vectorise them.
constexpr int kStrip = kSamplerStrip;

struct Peak {
  float value;
  int index;
  bool usable;  // no NaN, no +inf, not all -inf
};

Peak find_peak(const float* logits, int n) {
  constexpr int kChunk = 16 * kStrip;
  Peak peak{-kInfinity, 0, true};
  int peak_chunk = 0;
  std::int32_t bad = 0;
  for (int first = 0; first < n; first += kChunk) {
    const int end = n - first < kChunk ? n : first + kChunk;
    float best[kStrip];
    std::int32_t wrong[kStrip] = {};
    for (float& value : best) value = -kInfinity;
    int i = first;
    for (; i + kStrip <= end; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) {
        const float x = logits[i + j];
        wrong[j] |= x < kInfinity ? 0 : 1;
        best[j] = x > best[j] ? x : best[j];
      }
    }
    for (; i < end; ++i) {
      wrong[0] |= logits[i] < kInfinity ? 0 : 1;
      best[0] = logits[i] > best[0] ? logits[i] : best[0];
    }
    float value = -kInfinity;
    for (int j = 0; j < kStrip; ++j) {
      bad |= wrong[j];
      value = best[j] > value ? best[j] : value;
    }
    if (value > peak.value) {
      peak.value = value;
      peak_chunk = first;
    }
  }
  peak.usable = bad == 0 && peak.value > -kInfinity;
  if (peak.usable) {
    peak.index = peak_chunk;
    while (logits[peak.index] != peak.value) ++peak.index;
  }
  return peak;
}

// Ascending where z <= 0 descends; -0 and 0 are equal.
std::uint32_t rank_of(float z) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &z, sizeof bits);
  return bits & 0x7fffffff;
}

// The last place that a filter keeps.
struct Cut {
  std::uint32_t rank;
  int index;
};

bool kept(const Cut& cut, std::uint32_t rank, int index) {
  return rank < cut.rank || (rank == cut.rank && index <= cut.index);
}

// Whether one of a strip has the leading digits `prefix`.
bool any_rank(const float* z, int shift, std::uint32_t prefix) {
  std::int32_t any = 0;
  for (int j = 0; j < kStrip; ++j) any |= rank_of(z[j]) >> shift == prefix ? 1 : 0;
  return any != 0;
}

// weight(z) of sampler.h, for a strip.
void weigh(const float* z, std::int64_t* weights) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.1219444e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number, half to even
  // A loop of its own, or the compiler makes the constant a branch and vectorises nothing.
  float clamped[kStrip];
  for (int j = 0; j < kStrip; ++j) clamped[j] = z[j] > -28.0f ? z[j] : -28.0f;
  float scaled[kStrip];
  for (int j = 0; j < kStrip; ++j) {
    const float x = clamped[j];
    const float n = (x * kLog2E + kRound) - kRound;
    const float r = (x - n * kLn2High) - n * kLn2Low;
    float exp_r = 1.0f / 5040;
    exp_r = exp_r * r + 1.0f / 720;
    exp_r = exp_r * r + 1.0f / 120;
    exp_r = exp_r * r + 1.0f / 24;
    exp_r = exp_r * r + 1.0f / 6;
    exp_r = exp_r * r + 0.5f;
    exp_r = exp_r * r + 1.0f;
    exp_r = exp_r * r + 1.0f;
    const std::int32_t power_bits = (static_cast<std::int32_t>(n) + 40 + 127) << 23;
    float power;
    __builtin_memcpy(&power, &power_bits, sizeof power);
    scaled[j] = exp_r * power;
  }
  for (int j = 0; j < kStrip; ++j) weights[j] = static_cast<std::int64_t>(scaled[j]);
}

// What a filter measures, and how much of it it keeps.
struct Tokens {
  std::int64_t wanted;

  static void of(const float*, std::int64_t* weights) {
    for (int j = 0; j < kStrip; ++j) weights[j] = 1;
  }
  std::int64_t target(std::int64_t) const { return wanted; }
};

struct Mass {
  float share;

  static void of(const float* z, std::int64_t* weights) { weigh(z, weights); }
  std::int64_t target(std::int64_t total) const {
    const auto wanted = static_cast<std::int64_t>(::ceil(static_cast<double>(share) * static_cast<double>(total)));
    return wanted < 1 ? 1 : wanted > total ? total : wanted;
  }
};

// The place in rank order where the running sum of a measure first reaches its target, found by three digits of the
// rank, most significant first, and then among equals by id. The target must lie in 1 .. sum. z [n], n whole strips.
template <typename Measure>
Cut select(const float* z, int n, const Measure& measure) {
  constexpr int kDigits = 3;
  constexpr int kShift[kDigits] = {20, 10, 0};
  constexpr int kBits[kDigits] = {11, 10, 10};
  std::int64_t sums[1 << 11];
  std::int64_t weights[kStrip];
  std::int64_t target = 0;
  std::uint32_t prefix = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = kShift[digit];
    const std::uint32_t mask = (1u << kBits[digit]) - 1;
    __builtin_memset(sums, 0, sizeof sums);
    for (int i = 0; i < n; i += kStrip) {
      if (digit > 0 && !any_rank(z + i, shift + kBits[digit], prefix)) continue;
      Measure::of(z + i, weights);
      for (int j = 0; j < kStrip; ++j) {
        const std::uint32_t rank = rank_of(z[i + j]);
        if (rank >> (shift + kBits[digit]) == prefix) sums[(rank >> shift) & mask] += weights[j];
      }
    }
    if (digit == 0) {
      std::int64_t total = 0;
      for (const std::int64_t sum : sums) total += sum;
      target = measure.target(total);
    }
    std::uint32_t value = 0;
    while (sums[value] < target) {
      target -= sums[value++];
      assert(value <= mask);
    }
    prefix = prefix << kBits[digit] | value;
  }
  for (int i = 0; i < n; i += kStrip) {
    if (!any_rank(z + i, 0, prefix)) continue;
    Measure::of(z + i, weights);
    for (int j = 0; j < kStrip; ++j) {
      if (rank_of(z[i + j]) != prefix) continue;
      target -= weights[j];
      if (target <= 0) return {prefix, i + j};
    }
  }
  assert(false);
  return {prefix, n};
}

void drop_beyond(const Cut& cut, float* z, int n) {
  for (int i = 0; i < n; ++i) z[i] = kept(cut, rank_of(z[i]), i) ? z[i] : -kInfinity;
}

void drop_below(float low, float* z, int n) {
  for (int i = 0; i < n; ++i) z[i] = z[i] >= low ? z[i] : -kInfinity;
}

// argmax of z + noise. Noise is exact only where a cheap upper bound of it, from its word's leading zeros, can win.
int draw(const float* z, int n, const SamplingParams& params) {
  constexpr float kMaxNoise = 23.0f;
  // More than what float32 loses in z + bound near the best score.
  constexpr float kSlack = 1e-3f;
  const auto c1 = static_cast<std::uint32_t>(params.position);
  const auto c2 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(params.position) >> 32);
  const auto k0 = static_cast<std::uint32_t>(params.seed);
  const auto k1 = static_cast<std::uint32_t>(params.seed >> 32);
  // Below every score that can win, and above what the filters dropped.
  double best = -1e30;
  int best_index = -1;
  for (int i = 0; i < n; i += kStrip) {
    const float low = static_cast<float>(best) - kSlack;
    std::int32_t any = 0;
    for (int j = 0; j < kStrip; ++j) any |= z[i + j] + kMaxNoise >= low ? 1 : 0;
    if (any == 0) continue;
    std::uint32_t words[4][kStrip / 4];  // word w of counter c belongs to token i + 4 * c + w
    for (int c = 0; c < kStrip / 4; ++c) words[0][c] = static_cast<std::uint32_t>(i / 4 + c);
    philox4x32(words, c1, c2, 0, k0, k1);
    std::uint32_t flat[kStrip];
    for (int c = 0; c < kStrip / 4; ++c) {
      for (int w = 0; w < 4; ++w) flat[4 * c + w] = words[w][c];
    }
    // -log(-log u) <= -log(1 - u), and 1 - u > h * 2^-31 for h the upper 31 bits of the complement.
    std::int32_t can_win[kStrip];
    any = 0;
    for (int j = 0; j < kStrip; ++j) {
      const float h = static_cast<float>(static_cast<std::int32_t>(~flat[j] >> 1));
      const std::int32_t log2_h = static_cast<std::int32_t>(rank_of(h) >> 23) - 127;
      const float bound = static_cast<float>(31 - log2_h) * 0.6931472f;
      can_win[j] = z[i + j] + bound >= low ? 1 : 0;
      any |= can_win[j];
    }
    if (any == 0) continue;
    for (int j = 0; j < kStrip; ++j) {
      if (can_win[j] == 0) continue;
      const double score = static_cast<double>(z[i + j]) + gumbel_noise(flat[j]);
      if (score > best) {
        best = score;
        best_index = i + j;
      }
    }
  }
  return best_index;
}

std::int64_t choose(const float* logits, int vocab_size, const SamplingParams& params, float* z) {
  const Peak peak = find_peak(logits, vocab_size);
  if (!peak.usable) return -1;
  if (params.temperature == 0.0f || params.top_k == 1) return peak.index;

  const int n = sampler_scratch_size(vocab_size);
  for (int i = 0; i < vocab_size; ++i) z[i] = (logits[i] - peak.value) / params.temperature;
  for (int i = vocab_size; i < n; ++i) z[i] = -kInfinity;
  if (params.min_p > 0.0f) drop_below(static_cast<float>(::log(static_cast<double>(params.min_p))), z, n);
  if (params.top_k > 0 && params.top_k < vocab_size) drop_beyond(select(z, n, Tokens{params.top_k}), z, n);
  if (params.top_p < 1.0f) drop_beyond(select(z, n, Mass{params.top_p}), z, n);
  return draw(z, n, params);
}

}  // namespace
}  // namespace tercet
