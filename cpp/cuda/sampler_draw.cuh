// argmax of z + noise over what threads consider, with the noise of tercet/philox.h.
//
// Noise is exact (two logarithms in float64) only where a cheap upper bound of it, from its word's leading zeros, can
// still win against the best score that any thread of the block has seen: some tens of a whole vocabulary.
#pragma once

#include "kernel.cuh"
#include "sampler_sums.cuh"
#include "tercet/philox.h"

namespace tercet::cuda {

class Draw {
 public:
  struct Shared {
    int best;  // of all scores so far, a little below, as an ordered integer
    double scores[kWarp];
    int indices[kWarp];
  };

  // All threads.
  __device__ Draw(std::uint64_t seed, std::int64_t position, Shared& shared)
      : k0_(static_cast<unsigned>(seed)),
        k1_(static_cast<unsigned>(seed >> 32)),
        c1_(static_cast<unsigned>(position)),
        c2_(static_cast<unsigned>(static_cast<std::uint64_t>(position) >> 32)),
        shared_(shared) {
    if (threadIdx.x == 0) shared.best = ordered(kNothing);
    __syncthreads();
  }

  // Tokens index .. index + 3, index a multiple of 4; z is -inf for those that may not be chosen.
  __device__ void consider_four(const float (&z)[4], int index) {
    const float low = value_of(*const_cast<volatile int*>(&shared_.best));
    const float most = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
    if (most + kMaxNoise < low) return;
    unsigned words[4];
    philox(static_cast<unsigned>(index) >> 2, words);
    unsigned can_win = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) can_win |= (z[j] + bound_of(words[j]) >= low ? 1u : 0u) << j;
    while (can_win != 0) {
      const int j = __ffs(static_cast<int>(can_win)) - 1;
      can_win &= can_win - 1;
      score(one_of(z, j), index + j, one_of(words, j));
    }
  }

  __device__ void consider(float z, int index) {
    const float low = value_of(*const_cast<volatile int*>(&shared_.best));
    if (z + kMaxNoise < low) return;
    unsigned words[4];
    philox(static_cast<unsigned>(index) >> 2, words);
    const unsigned word = one_of(words, index & 3);
    if (z + bound_of(word) >= low) score(z, index, word);
  }

  // The index of the best, the lowest among equals; for all threads, which must all call it.
  __device__ int winner() {
    reduce_warp();
    const int lane = threadIdx.x % kWarp;
    if (lane == 0) {
      shared_.scores[threadIdx.x / kWarp] = best_;
      shared_.indices[threadIdx.x / kWarp] = index_;
    }
    __syncthreads();
    best_ = shared_.scores[lane];
    index_ = shared_.indices[lane];
    reduce_warp();
    return index_;
  }

 private:
  static constexpr float kMaxNoise = 23.0f;
  static constexpr float kSlack = 1e-3f;  // more than what float32 loses in z + bound near the best score
  static constexpr float kNothing = -1e30f;

  // Integers in the order of the floats they stand for; its own inverse.
  __device__ static int flipped(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
  __device__ static int ordered(float x) { return flipped(__float_as_int(x)); }
  __device__ static float value_of(int bits) { return __int_as_float(flipped(bits)); }

  // noise <= -log(1 - u), and 1 - u > h * 2^-31 for h the upper 31 bits of the complement.
  __device__ static float bound_of(unsigned word) {
    const unsigned h = ~word >> 1;
    return static_cast<float>(h != 0 ? __clz(h) : 34) * 0.6931472f;
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
    const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
    const double score = static_cast<double>(z) - log(-log(u));
    if (!(score > kNothing)) return;
    keep_better(score, index);
    atomicMax(&shared_.best, ordered(static_cast<float>(score) - kSlack));
  }

  __device__ void keep_better(double score, int index) {
    if (score > best_ || (score == best_ && index < index_)) {
      best_ = score;
      index_ = index;
    }
  }

  __device__ void reduce_warp() {
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      keep_better(__shfl_xor_sync(kFullWarp, best_, lanes), __shfl_xor_sync(kFullWarp, index_, lanes));
    }
  }

  unsigned k0_, k1_, c1_, c2_;
  double best_ = kNothing;
  int index_ = 0x7fffffff;
  Shared& shared_;
};

}  // namespace tercet::cuda
