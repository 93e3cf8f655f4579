#include "tercet/sampler.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tercet/philox.h"

namespace tercet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Loops over a strip have a constant count and no order between lanes, so that compilers vectorise them.
constexpr int kStrip = 64;

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
    const int end = std::min(n, first + kChunk);
    float best[kStrip];
    std::int32_t wrong[kStrip] = {};
    std::fill(best, best + kStrip, -kInfinity);
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
    for (int j = 0; j < kStrip; ++j) bad |= wrong[j];
    const float value = *std::max_element(best, best + kStrip);
    if (value > peak.value) {
      peak.value = value;
      peak_chunk = first;
    }
  }
  peak.usable = bad == 0 && peak.value > -kInfinity;
  if (peak.usable) {
    peak.index = static_cast<int>(std::find(logits + peak_chunk, logits + n, peak.value) - logits);
  }
  return peak;
}

// Ascending where z <= 0 descends; -0 and 0 are equal.
std::uint32_t rank_of(float z) {
  std::uint32_t bits;
  std::memcpy(&bits, &z, sizeof bits);
  return bits & 0x7fffffff;
}

// The last place that a filter keeps.
struct Cut {
  std::uint32_t rank;
  int index;
};

constexpr Cut kKeepAll{0xffffffff, 0};

bool kept(const Cut& cut, std::uint32_t rank, int index) {
  return rank < cut.rank || (rank == cut.rank && index <= cut.index);
}

// weight(z) of sampler.h, for a strip.
void weigh(const float* z, std::int64_t* weights) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.1219444e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number, half to even
  float scaled[kStrip];
  for (int j = 0; j < kStrip; ++j) {
    const float x = z[j] < -28.0f ? -28.0f : z[j];
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
    std::memcpy(&power, &power_bits, sizeof power);
    scaled[j] = z[j] < -28.0f ? 0.0f : exp_r * power;
  }
  for (int j = 0; j < kStrip; ++j) weights[j] = static_cast<std::int64_t>(scaled[j]);
}

void count(const float*, std::int64_t* weights) { std::fill(weights, weights + kStrip, 1); }

// The scaled logits of a row: V of them, then -inf up to a whole number of strips.
using Row = std::vector<float>;

// The place in rank order where the running sum of weights first reaches `target`, found by three digits of the rank,
// most significant first, and then among equals by id. Needs 1 <= target <= sum of all weights.
template <void (*weights_of)(const float*, std::int64_t*)>
Cut select(const Row& z, std::int64_t target) {
  struct Digit {
    int shift;
    int bits;
  };
  constexpr Digit kDigits[] = {{20, 11}, {10, 10}, {0, 10}};
  std::array<std::int64_t, 1 << 11> sums;
  std::int64_t weights[kStrip];
  std::uint32_t prefix = 0;
  const int n = static_cast<int>(z.size());
  for (const Digit digit : kDigits) {
    sums.fill(0);
    for (int i = 0; i < n; i += kStrip) {
      bool any = false;
      for (int j = 0; j < kStrip; ++j) any |= rank_of(z[i + j]) >> (digit.shift + digit.bits) == prefix;
      if (!any) continue;
      weights_of(&z[i], weights);
      for (int j = 0; j < kStrip; ++j) {
        const std::uint32_t rank = rank_of(z[i + j]);
        if (rank >> (digit.shift + digit.bits) != prefix) continue;
        sums[(rank >> digit.shift) & ((1u << digit.bits) - 1)] += weights[j];
      }
    }
    std::uint32_t value = 0;
    while (sums[value] < target) {
      target -= sums[value++];
      assert(value < 1u << digit.bits);
    }
    prefix = prefix << digit.bits | value;
  }
  for (int i = 0; i < n; i += kStrip) {
    bool any = false;
    for (int j = 0; j < kStrip; ++j) any |= rank_of(z[i + j]) == prefix;
    if (!any) continue;
    weights_of(&z[i], weights);
    for (int j = 0; j < kStrip; ++j) {
      if (rank_of(z[i + j]) != prefix) continue;
      target -= weights[j];
      if (target <= 0) return {prefix, i + j};
    }
  }
  assert(false);
  return kKeepAll;
}

void drop_beyond(const Cut& cut, Row& z) {
  const int n = static_cast<int>(z.size());
  for (int i = 0; i < n; ++i) z[i] = kept(cut, rank_of(z[i]), i) ? z[i] : -kInfinity;
}

void keep_min_p(float min_p, Row& z) {
  const auto low = static_cast<float>(std::log(static_cast<double>(min_p)));
  for (float& x : z) x = x >= low ? x : -kInfinity;
}

void keep_top_p(float top_p, Row& z) {
  std::int64_t total = 0;
  std::int64_t weights[kStrip];
  for (std::size_t i = 0; i < z.size(); i += kStrip) {
    weigh(&z[i], weights);
    for (int j = 0; j < kStrip; ++j) total += weights[j];
  }
  const double wanted = std::ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const std::int64_t target = std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted), 1, total);
  drop_beyond(select<weigh>(z, target), z);
}

// argmax of z + noise. Noise is exact only where a cheap upper bound of it, from its word's leading zeros, can win.
int draw(const Row& z, const SamplingParams& params) {
  constexpr float kMaxNoise = 23.0f;
  // More than what float32 loses in z + bound near the best score.
  constexpr float kSlack = 1e-3f;
  const auto c1 = static_cast<std::uint32_t>(params.position);
  const auto c2 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(params.position) >> 32);
  const auto k0 = static_cast<std::uint32_t>(params.seed);
  const auto k1 = static_cast<std::uint32_t>(params.seed >> 32);
  double best = -std::numeric_limits<double>::infinity();
  int best_index = -1;
  const int n = static_cast<int>(z.size());
  for (int i = 0; i < n; i += kStrip) {
    const float low = static_cast<float>(best) - kSlack;
    bool any = false;
    for (int j = 0; j < kStrip; ++j) any |= z[i + j] > -kInfinity && z[i + j] + kMaxNoise >= low;
    if (!any) continue;
    std::uint32_t words[4][kStrip / 4];  // word w of counter c belongs to token i + 4 * c + w
    for (int c = 0; c < kStrip / 4; ++c) words[0][c] = static_cast<std::uint32_t>(i / 4 + c);
    philox4x32(words, c1, c2, 0, k0, k1);
    std::uint32_t flat[kStrip];
    for (int c = 0; c < kStrip / 4; ++c) {
      for (int w = 0; w < 4; ++w) flat[4 * c + w] = words[w][c];
    }
    // -log(-log u) <= -log(1 - u), and 1 - u > h * 2^-31 for h the upper 31 bits of the complement.
    std::uint8_t can_win[kStrip];
    for (int j = 0; j < kStrip; ++j) {
      const float h = static_cast<float>(static_cast<std::int32_t>(~flat[j] >> 1));
      const int log2_h = static_cast<int>(rank_of(h) >> 23) - 127;
      const float bound = static_cast<float>(31 - log2_h) * 0.6931472f;
      can_win[j] = z[i + j] > -kInfinity && z[i + j] + bound >= low;
    }
    for (int j = 0; j < kStrip; ++j) {
      if (!can_win[j]) continue;
      const double score = static_cast<double>(z[i + j]) + gumbel_noise(flat[j]);
      if (score > best) {
        best = score;
        best_index = i + j;
      }
    }
  }
  return best_index;
}

}  // namespace

std::int64_t sample_row(const float* logits, int vocab_size, const SamplingParams& params) {
  const Peak peak = find_peak(logits, vocab_size);
  if (!peak.usable) return -1;
  if (params.temperature == 0.0f || params.top_k == 1) return peak.index;

  thread_local Row z;
  z.resize((static_cast<std::size_t>(vocab_size) + kStrip - 1) / kStrip * kStrip);
  for (int i = 0; i < vocab_size; ++i) z[i] = (logits[i] - peak.value) / params.temperature;
  std::fill(z.begin() + vocab_size, z.end(), -kInfinity);
  if (params.min_p > 0.0f) keep_min_p(params.min_p, z);
  if (params.top_k > 0 && params.top_k < vocab_size) drop_beyond(select<count>(z, params.top_k), z);
  if (params.top_p < 1.0f) keep_top_p(params.top_p, z);
  return draw(z, params);
}

}  // namespace tercet
