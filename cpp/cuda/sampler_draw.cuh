// argmax of z + noise over what threads consider, with the noise of tercet/philox.h.
//
// Noise is exact (two logarithms in float64) only where a cheap upper bound of it, from its word's leading zeros, can
// still win against the best score that any thread of the block has seen: some tens of a whole vocabulary.
#pragma once

#include "cluster.cuh"
#include "kernel.cuh"
#include "sampler_sums.cuh"
#include "tercet/philox.h"

namespace tercet::cuda {

struct Four {
  float at[4];
};

class Draw {
 public:
  struct Best {
    double score;
    int index;

    __device__ void keep_better(const Best& other) {
      if (other.score > score || (other.score == score && other.index < index)) *this = other;
    }
  };

  struct Shared {
    int least;  // no score below it can win: what some score is sure to reach, as an ordered integer
    Best of_warps[kWarp];
    Best of_blocks[kMaxTeam];
  };

  // All threads.
  __device__ Draw(std::uint64_t seed, std::int64_t position, Shared& shared)
      : k0_(static_cast<unsigned>(seed)),
        k1_(static_cast<unsigned>(seed >> 32)),
        c1_(static_cast<unsigned>(position)),
        c2_(static_cast<unsigned>(static_cast<std::uint64_t>(position) >> 32)),
        shared_(shared) {
    if (threadIdx.x == 0) shared.least = ordered(kNothing);
    __syncthreads();
  }

  // What one of tokens index .. index + 3 is sure to reach; index is a multiple of 4, z -inf where it may not be
  // chosen.
  __device__ void foresee(const Four& z, int index) {
    unsigned words[4];
    philox(static_cast<unsigned>(index) >> 2, words);
    raise(sure_of(z, words));
  }

  // Tokens index .. index + 3, as for `foresee`.
  __device__ void consider(const Four& z, int index) {
    if (fmaxf(fmaxf(z.at[0], z.at[1]), fmaxf(z.at[2], z.at[3])) + kMaxNoise < least()) return;
    unsigned words[4];
    philox(static_cast<unsigned>(index) >> 2, words);
    const float low = least();
    unsigned can_win = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) can_win |= (z.at[j] + most_noise(words[j]) >= low ? 1u : 0u) << j;
    if (can_win == 0) return;
    raise(sure_of(z, words));
    while (can_win != 0) {
      const int j = __ffs(static_cast<int>(can_win)) - 1;
      can_win &= can_win - 1;
      score(one_of(z.at, j), index + j, one_of(words, j));
    }
  }

  __device__ void consider(float z, int index) {
    if (z + kMaxNoise < least()) return;
    unsigned words[4];
    philox(static_cast<unsigned>(index) >> 2, words);
    const unsigned word = one_of(words, index & 3);
    raise(z + least_noise(word));
    score(z, index, word);
  }

  // The best, the lowest index among equals; for all threads, which must all call it.
  __device__ Best winner() {
    reduce_warp();
    if (threadIdx.x % kWarp == 0) shared_.of_warps[threadIdx.x / kWarp] = best_;
    __syncthreads();
    best_ = shared_.of_warps[threadIdx.x % kWarp];
    reduce_warp();
    return best_;
  }

 private:
  static constexpr float kMaxNoise = 23.0f;
  static constexpr float kSlack = 1e-3f;  // more than what float32 loses in z + bound near the best score
  static constexpr float kNothing = -1e30f;

  // Integers in the order of the floats they stand for; its own inverse.
  __device__ static int flipped(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
  __device__ static int ordered(float x) { return flipped(__float_as_int(x)); }
  __device__ static float value_of(int bits) { return __int_as_float(flipped(bits)); }

  __device__ float least() const { return value_of(*const_cast<const volatile int*>(&shared_.least)); }

  // Some score is at least `score`.
  __device__ void raise(float score) {
    if (score - kSlack > least()) atomicMax(&shared_.least, ordered(score - kSlack));
  }

  __device__ static float sure_of(const Four& z, const unsigned (&words)[4]) {
    float sure = kNothing;
#pragma unroll
    for (int j = 0; j < 4; ++j) sure = fmaxf(sure, z.at[j] + least_noise(words[j]));
    return sure;
  }

  // With h the upper 31 bits of the complement of the word, h * 2^-31 < 1 - u < (h + 1) * 2^-31, so that its leading
  // zeros bound noise from both sides: -log(1 - u) >= noise, and >= noise - log 2 where u >= 1/2.
  __device__ static float most_noise(unsigned word) {
    const unsigned h = ~word >> 1;
    return static_cast<float>(h != 0 ? __clz(h) : 34) * 0.6931472f;
  }
  __device__ static float least_noise(unsigned word) {
    const int zeros = __clz(~word >> 1);
    return zeros > 1 ? static_cast<float>(zeros - 2) * 0.6931472f : -3.2f;
  }

  __device__ void philox(unsigned c0, unsigned (&words)[4]) const {
    unsigned x0 = c0, x1 = c1_, x2 = c2_, x3 = 0, k0 = k0_, k1 = k1_;
#pragma unroll
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const unsigned high0 = __umulhi(kPhiloxMultiplier0, x0), low0 = kPhiloxMultiplier0 * x0;
      const unsigned high1 = __umulhi(kPhiloxMultiplier1, x2), low1 = kPhiloxMultiplier1 * x2;
      x0 = high1 ^ x1 ^ k0;
      x1 = low1;
      x2 = high0 ^ x3 ^ k1;
      x3 = low0;
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    words[0] = x0;
    words[1] = x1;
    words[2] = x2;
    words[3] = x3;
  }

  // Without an index into registers, which would move them to memory.
  template <typename T>
  __device__ static T one_of(const T (&four)[4], int i) {
    return i < 2 ? (i == 0 ? four[0] : four[1]) : (i == 2 ? four[2] : four[3]);
  }

  __device__ void score(float z, int index, unsigned word) {
    if (z + most_noise(word) < least()) return;
    const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
    const Best it{static_cast<double>(z) - log(-log(u)), index};
    if (!(it.score > kNothing)) return;
    best_.keep_better(it);
    raise(static_cast<float>(it.score));
  }

  __device__ void reduce_warp() {
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      best_.keep_better(
          {__shfl_xor_sync(kFullWarp, best_.score, lanes), __shfl_xor_sync(kFullWarp, best_.index, lanes)});
    }
  }

  unsigned k0_, k1_, c1_, c2_;
  Best best_{kNothing, 0x7fffffff};
  Shared& shared_;
};

}  // namespace tercet::cuda
