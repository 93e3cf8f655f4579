// What the kernel templates share: register tiles of a matrix product, and exp. Whoever includes it has
// defined TERCET_SIMD as the header of an instruction set, whose Simd this uses; everything has internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include TERCET_SIMD

namespace tercet {
namespace {

// Calls body(integral_constant<int, n>) for a run-time n of 1..kMax.
template <int kMax, typename Body>
inline void with_count(int n, Body&& body) {
  if constexpr (kMax == 1) {
    body(std::integral_constant<int, 1>{});
  } else if (n == kMax) {
    body(std::integral_constant<int, kMax>{});
  } else {
    with_count<kMax - 1>(n, body);
  }
}

// How far ahead weights that come from memory are asked for: they are read once and in order, yet each of their streams
// ends too soon for the hardware to run far enough ahead.
constexpr int64_t kPrefetchBytes = 1024;

// sums[m][v] += a[m][0..depth) . b[0..depth)[v], each one chain of multiply-adds in the order of depth: an element's
// bits do not depend on the tile it is computed in.
template <int kRows, int kVectors>
inline void add_products(Simd::F (&sums)[kRows][kVectors], const float* a, ptrdiff_t row_stride, const float* b,
                         ptrdiff_t depth_stride, ptrdiff_t vector_stride, int64_t depth, bool prefetch = false) {
  for (int64_t k = 0; k < depth; ++k) {
    Simd::F weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const float* p = b + k * depth_stride + v * vector_stride;
      if (prefetch) __builtin_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes);
      weights[v] = Simd::load(p);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Simd::F x = Simd::set1(a[m * row_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Simd::fma(x, weights[v], sums[m][v]);
    }
  }
}

// The same for bfloat16 in pairs of depth: the weights of depth k and k + 1 alternate, `depth_stride` is per k, and
// depth is even.
template <int kRows, int kVectors>
inline void add_products(Simd::F (&sums)[kRows][kVectors], const bf16* a, ptrdiff_t row_stride, const bf16* b,
                         ptrdiff_t depth_stride, ptrdiff_t vector_stride, int64_t depth, bool prefetch = false) {
  for (int64_t k = 0; k < depth; k += 2) {
    Simd::Pair weights[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const bf16* p = b + k * depth_stride + v * vector_stride;
      if (prefetch) __builtin_prefetch(reinterpret_cast<const char*>(p) + kPrefetchBytes);
      weights[v] = Simd::load_pair(p);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Simd::Pair x = Simd::broadcast_pair(a + m * row_stride + k);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[m][v] = Simd::dot(sums[m][v], weights[v], x);
    }
  }
}

// e^x within 2 ulp for -87 <= x <= 88, clamped to these outside; NaN stays NaN.
inline Simd::F exponential(Simd::F x) {
  x = Simd::min(Simd::set1(88.0f), Simd::max(Simd::set1(-87.0f), x));
  const Simd::F n = Simd::round(Simd::mul(x, Simd::set1(1.44269504f)));
  // ln 2 in two parts; the first has few bits, so that n times it is exact.
  Simd::F r = Simd::fma(n, Simd::set1(-0.693359375f), x);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  Simd::F y = Simd::set1(1.0f / 5040);
  y = Simd::fma(y, r, Simd::set1(1.0f / 720));
  y = Simd::fma(y, r, Simd::set1(1.0f / 120));
  y = Simd::fma(y, r, Simd::set1(1.0f / 24));
  y = Simd::fma(y, r, Simd::set1(1.0f / 6));
  y = Simd::fma(y, r, Simd::set1(0.5f));
  y = Simd::fma(y, r, Simd::set1(1.0f));
  y = Simd::fma(y, r, Simd::set1(1.0f));
  return Simd::scale(y, n);
}

}  // namespace
}  // namespace tercet
