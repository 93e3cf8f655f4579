// Sixteen floats for AVX2 + FMA, in two registers. Only for kernels_avx2.cpp; everything has internal linkage, as the
// same names mean other instructions elsewhere.
#pragma once

#include <immintrin.h>

#include "tercet/bf16.h"

namespace tercet {
namespace {

struct Simd {
  struct F {
    __m256 low, high;
  };
  // Register tile of a matrix product: twelve accumulators, two of weights and one of x fit 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVectors = 1;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load(const bf16* p) {
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  // The first n elements, then zeros; reads no further.
  template <typename T>
  static F load(const T* p, int n) {
    T whole[16] = {};
    std::memcpy(whole, p, n * sizeof(T));
    return load(whole);
  }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  static void store(bf16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x.low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow(x.high));
  }
  template <typename T>
  static void store(T* p, F x, int n) {
    T whole[16];
    store(whole, x);
    std::memcpy(p, whole, n * sizeof(T));
  }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  // A NaN in b comes through, one in a does not.
  static F max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  // The first n lanes of x, then those of rest.
  static F head(F x, int n, F rest) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes));
    const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes));
    return {_mm256_blendv_ps(rest.low, x.low, low), _mm256_blendv_ps(rest.high, x.high, high)};
  }
  static float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static float largest(F x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static F round(F x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
  }
  // x times 2^n, n integral and in the exponent's range.
  static F scale(F x, F n) { return mul(x, {power(n.low), power(n.high)}); }

  // rows[i] lane j <-> rows[j] lane i.
  static void transpose(F (&rows)[16]) {
    __m256 quarter[8];
    for (int i = 0; i < 8; ++i) quarter[i] = rows[i].low;
    transpose8(quarter);
    for (int i = 0; i < 8; ++i) rows[i].low = quarter[i];
    for (int i = 0; i < 8; ++i) quarter[i] = rows[i + 8].high;
    transpose8(quarter);
    for (int i = 0; i < 8; ++i) rows[i + 8].high = quarter[i];
    __m256 other[8];
    for (int i = 0; i < 8; ++i) quarter[i] = rows[i].high;
    for (int i = 0; i < 8; ++i) other[i] = rows[i + 8].low;
    transpose8(quarter);
    transpose8(other);
    for (int i = 0; i < 8; ++i) rows[i].high = other[i];
    for (int i = 0; i < 8; ++i) rows[i + 8].low = quarter[i];
  }

  // Pairs of bf16: 16 columns x 2 of a packed weight, or two neighbours of x broadcast.
  struct Pair {
    F even, odd;
  };
  static Pair load_pair(const bf16* p) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
            {_mm256_castsi256_ps(_mm256_and_si256(low, upper)), _mm256_castsi256_ps(_mm256_and_si256(high, upper))}};
  }
  static Pair broadcast_pair(const bf16* p) { return {set1(to_float(p[0])), set1(to_float(p[1]))}; }
  static F dot(F sum, Pair w, Pair x) { return fma(w.odd, x.odd, fma(w.even, x.even, sum)); }

 private:
  static __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  }
  static __m256 power(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static void transpose8(__m256 (&rows)[8]) {
    __m256 a[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    __m256 b[8];
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    for (int j = 0; j < 4; ++j) {
      rows[j] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x20);
      rows[j + 4] = _mm256_permute2f128_ps(b[j], b[j + 4], 0x31);
    }
  }
};

}  // namespace
}  // namespace tercet
