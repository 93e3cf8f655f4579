// Sixteen floats for AVX-512, with or without BF16. Only for kernels_avx512*.cpp; everything has internal linkage, as
// the same names mean other instructions elsewhere.
#pragma once

// GCC 12's own header leaves operands that a full mask ignores uninitialised, and warns of it where it is inlined
// (GCC bug 105593): off for the files that include this.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "tercet/bf16.h"

namespace tercet {
namespace {

struct Simd {
  using F = __m512;
  // Register tile of a matrix product: rows x vectors accumulators, and a row of weights, fit 32 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kTileVectors = 4;

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  // The first n elements, then zeros; reads no further.
  static F load(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static F load(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(bf16* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
  static void store(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static void store(bf16* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  // A NaN in b comes through, one in a does not.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  // The first n lanes of x, then those of rest.
  static F head(F x, int n, F rest) { return _mm512_mask_mov_ps(rest, first(n), x); }
  static float sum(F x) { return _mm512_reduce_add_ps(x); }
  static float largest(F x) { return _mm512_reduce_max_ps(x); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x times 2^n, n integral and in the exponent's range.
  static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }

  // rows[i] lane j <-> rows[j] lane i.
  static void transpose(F (&rows)[16]) {
    F a[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    F b[16];
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    // b[4i + j] holds column 4q + j of rows 4i..4i+3 in its quarter q.
    for (int j = 0; j < 4; ++j) {
      const F low = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x88);
      const F high = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xdd);
      const F low2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x88);
      const F high2 = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xdd);
      rows[j] = _mm512_shuffle_f32x4(low, low2, 0x88);
      rows[j + 4] = _mm512_shuffle_f32x4(high, high2, 0x88);
      rows[j + 8] = _mm512_shuffle_f32x4(low, low2, 0xdd);
      rows[j + 12] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
  }

#ifdef __AVX512BF16__
  static __m256i narrow(F x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

  // Pairs of bf16: 16 columns x 2 of a packed weight, or two neighbours of x broadcast.
  using Pair = __m512bh;
  static Pair load_pair(const bf16* p) { return reinterpret_cast<Pair>(_mm512_loadu_si512(p)); }
  static Pair broadcast_pair(const bf16* p) {
    int bits;
    std::memcpy(&bits, p, sizeof bits);
    return reinterpret_cast<Pair>(_mm512_set1_epi32(bits));
  }
  static F dot(F sum, Pair w, Pair x) { return _mm512_dpbf16_ps(sum, w, x); }
#else
  static __m256i narrow(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }

  struct Pair {
    F even, odd;
  };
  static Pair split(__m512i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static Pair load_pair(const bf16* p) { return split(_mm512_loadu_si512(p)); }
  static Pair broadcast_pair(const bf16* p) { return {set1(to_float(p[0])), set1(to_float(p[1]))}; }
  static F dot(F sum, Pair w, Pair x) { return fma(w.odd, x.odd, fma(w.even, x.even, sum)); }
#endif
};

}  // namespace
}  // namespace tercet
