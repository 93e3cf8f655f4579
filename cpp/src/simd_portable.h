// Sixteen floats for any CPU, in four of the compiler's own vectors. Only for kernels_portable.cpp; everything has
// internal linkage, as the same names mean other instructions elsewhere.
#pragma once

#include <cmath>

#include "tercet/bf16.h"

namespace tercet {
namespace {

struct Simd {
  typedef float Four __attribute__((vector_size(16)));
  struct F {
    Four v[4];
    float get(int i) const { return v[i / 4][i % 4]; }
    void set(int i, float x) { v[i / 4][i % 4] = x; }
  };
  // Register tile of a matrix product: eight accumulators and a row of weights fit 16 registers of four floats.
  static constexpr int kTileRows = 2;
  static constexpr int kTileVectors = 1;

  template <typename Op>
  static F each_four(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
  }
  template <typename Op>
  static F each(Op op) {
    F y;
    for (int i = 0; i < 16; ++i) y.set(i, op(i));
    return y;
  }

  static F zero() { return set1(0.0f); }
  static F set1(float x) {
    return each_four([&](int) { return Four{x, x, x, x}; });
  }
  static F load(const float* p) {
    F y;
    std::memcpy(&y, p, sizeof y);
    return y;
  }
  static F load(const bf16* p) {
    return each([&](int i) { return to_float(p[i]); });
  }
  // The first n elements, then zeros; reads no further.
  template <typename T>
  static F load(const T* p, int n) {
    T whole[16] = {};
    std::memcpy(whole, p, n * sizeof(T));
    return load(whole);
  }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static void store(bf16* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = to_bf16(x.get(i));
  }
  template <typename T>
  static void store(T* p, F x, int n) {
    T whole[16];
    store(whole, x);
    std::memcpy(p, whole, n * sizeof(T));
  }
  // Rounds twice: a fused one without the instruction would be a library call for each lane.
  static F fma(F a, F b, F c) {
    return each_four([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
  }
  static F add(F a, F b) {
    return each_four([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each_four([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each_four([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each_four([&](int i) { return a.v[i] / b.v[i]; });
  }
  // A NaN in b comes through, one in a does not.
  static F max(F a, F b) {
    return each_four([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each_four([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  // The first n lanes of x, then those of rest.
  static F head(F x, int n, F rest) {
    return each([&](int i) { return i < n ? x.get(i) : rest.get(i); });
  }
  static float sum(F x) {
    const Four four = (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
    return (four[0] + four[1]) + (four[2] + four[3]);
  }
  static float largest(F x) {
    float y = x.get(0);
    for (int i = 1; i < 16; ++i) y = y > x.get(i) ? y : x.get(i);
    return y;
  }
  static F round(F x) {
    return each([&](int i) { return std::nearbyintf(x.get(i)); });
  }
  // x times 2^n, n integral and in the exponent's range.
  static F scale(F x, F n) {
    return each([&](int i) {
      // A NaN has no integer; its product is a NaN whatever the factor.
      const int power = n.get(i) == n.get(i) ? static_cast<int>(n.get(i)) : 0;
      const uint32_t bits = static_cast<uint32_t>(power + 127) << 23;
      float factor;
      std::memcpy(&factor, &bits, sizeof factor);
      return x.get(i) * factor;
    });
  }

  // rows[i] lane j <-> rows[j] lane i.
  static void transpose(F (&rows)[16]) {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < i; ++j) {
        const float x = rows[i].get(j);
        rows[i].set(j, rows[j].get(i));
        rows[j].set(i, x);
      }
    }
  }

  // Pairs of bf16: 16 columns x 2 of a packed weight, or two neighbours of x broadcast.
  struct Pair {
    F even, odd;
  };
  static Pair load_pair(const bf16* p) {
    return {each([&](int i) { return to_float(p[2 * i]); }), each([&](int i) { return to_float(p[2 * i + 1]); })};
  }
  static Pair broadcast_pair(const bf16* p) { return {set1(to_float(p[0])), set1(to_float(p[1]))}; }
  static F dot(F sum, Pair w, Pair x) { return fma(w.odd, x.odd, fma(w.even, x.even, sum)); }
};

}  // namespace
}  // namespace tercet
