// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). No state, so a draw depends on what it is for
// and on nothing that ran before.
//
// The recipe, bit by bit, for every device:
//   key      k0 = seed & 0xffffffff, k1 = seed >> 32
//   counter  c0 = token_id >> 2, c1 = position & 0xffffffff, c2 = position >> 32, c3 = 0
//   word     output[token_id & 3] of Philox4x32-10(counter, key), as a uint32
//   u        (word + 0.5) * 2^-32 in float64: exact, in (0, 1)
//   noise    -log(-log(u)) in float64: standard Gumbel, in (-3.14, 22.88)
// Up to the last bits of log, which never decide an argmax in practice, noise is equal everywhere.
#pragma once

#include <math.h>

#include <cstdint>

namespace tercet {

// Static functions: they are compiled for several instruction sets in one program.

constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;

// Philox of `N` counters that differ in their first word only, word by word so that compilers vectorise it.
// On entry words[0][i] is the first word of counter i; on return words[w][i] is word w of its output.
template <int N>
static inline void philox4x32(std::uint32_t (&words)[4][N], std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                              std::uint32_t k0, std::uint32_t k1) {
  for (int i = 0; i < N; ++i) {
    words[1][i] = c1;
    words[2][i] = c2;
    words[3][i] = c3;
  }
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < N; ++i) {
      const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * words[0][i];
      const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * words[2][i];
      words[0][i] = static_cast<std::uint32_t>(product1 >> 32) ^ words[1][i] ^ k0;
      words[1][i] = static_cast<std::uint32_t>(product1);
      words[2][i] = static_cast<std::uint32_t>(product0 >> 32) ^ words[3][i] ^ k1;
      words[3][i] = static_cast<std::uint32_t>(product0);
    }
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
}

static inline double gumbel_noise(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -::log(-::log(u));
}

}  // namespace tercet
