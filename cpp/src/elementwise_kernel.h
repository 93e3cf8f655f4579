// RMSNorm, rotary embedding and gates over a share of rows. Included by kernels_*.cpp alone.
#pragma once

#include <cmath>

#include "tercet/activation.h"
#include "tercet/norm.h"
#include "tercet/rope.h"
#include "tile.h"

namespace tercet {
namespace {

// Calls body(d, n) for the whole vectors of 0..dim with n = 16, then for what is left; loads and stores of 16 elements
// know no mask.
template <typename Body>
inline void each_vector(int64_t dim, Body&& body) {
  int64_t d = 0;
  for (; d + 16 <= dim; d += 16) body(d, std::integral_constant<int, 16>{});
  if (d < dim) body(d, static_cast<int>(dim - d));
}

template <typename T, typename Count>
inline Simd::F load(const T* p, Count n) {
  if constexpr (std::is_same_v<Count, int>) {
    return Simd::load(p, n);
  } else {
    return Simd::load(p);
  }
}

template <typename T, typename Count>
inline void store(T* p, Simd::F x, Count n) {
  if constexpr (std::is_same_v<Count, int>) {
    Simd::store(p, x, n);
  } else {
    Simd::store(p, x);
  }
}

template <typename T>
void rms_norm_row(const T* x, T* residual, const T* weight, T* out, int64_t dim, float eps) {
  // Two chains, so that the sum does not wait for each multiply-add.
  Simd::F squares[2] = {Simd::zero(), Simd::zero()};
  each_vector(dim, [&](int64_t d, auto n) {
    Simd::F y = load(x + d, n);
    if (residual != nullptr) {
      store(residual + d, Simd::add(load(residual + d, n), y), n);
      y = load(residual + d, n);  // as rounded
    }
    Simd::F& sum = squares[d / 16 % 2];
    sum = Simd::fma(y, y, sum);
  });
  const float mean = Simd::sum(Simd::add(squares[0], squares[1])) / static_cast<float>(dim);
  const Simd::F factor = Simd::set1(1.0f / std::sqrt(mean + eps));
  if (residual != nullptr) x = residual;
  each_vector(dim, [&](int64_t d, auto n) {
    store(out + d, Simd::mul(Simd::mul(load(x + d, n), factor), load(weight + d, n)), n);
  });
}

template <typename T>
void rms_norm_of(const NormCall& call, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t outer = row / call.num_inner;
    const int64_t inner = row % call.num_inner;
    T* residual = static_cast<T*>(call.residual);
    if (residual != nullptr) residual += outer * call.residual_outer_stride + inner * call.residual_inner_stride;
    rms_norm_row(static_cast<const T*>(call.x) + outer * call.x_outer_stride + inner * call.x_inner_stride, residual,
                 static_cast<const T*>(call.weight), static_cast<T*>(call.out) + row * call.dim, call.dim, call.eps);
  }
}

void rms_norm_share(const NormCall& call, Range rows) {
  if (call.dtype == Dtype::f32) {
    rms_norm_of<float>(call, rows);
  } else {
    rms_norm_of<bf16>(call, rows);
  }
}

template <typename T>
void rotate(T* heads, int64_t num_heads, int64_t head_stride, const float* cos_sin, int64_t half) {
  for (int64_t head = 0; head < num_heads; ++head) {
    T* low = heads + head * head_stride;
    T* high = low + half;
    each_vector(half, [&](int64_t d, auto n) {
      const Simd::F cosine = load(cos_sin + d, n);
      const Simd::F sine = load(cos_sin + half + d, n);
      const Simd::F x = load(low + d, n);
      const Simd::F y = load(high + d, n);
      store(low + d, Simd::sub(Simd::mul(x, cosine), Simd::mul(y, sine)), n);
      store(high + d, Simd::add(Simd::mul(y, cosine), Simd::mul(x, sine)), n);
    });
  }
}

template <typename T>
void rope_of(const RopeCall& call, Range tokens) {
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const float* cos_sin = call.cos_sin + call.positions[token] * call.head_dim;
    rotate(static_cast<T*>(call.q) + token * call.q_token_stride, call.num_heads, call.q_head_stride, cos_sin,
           call.head_dim / 2);
    rotate(static_cast<T*>(call.k) + token * call.k_token_stride, call.num_kv_heads, call.k_head_stride, cos_sin,
           call.head_dim / 2);
  }
}

void rope_share(const RopeCall& call, Range tokens) {
  if (call.dtype == Dtype::f32) {
    rope_of<float>(call, tokens);
  } else {
    rope_of<bf16>(call, tokens);
  }
}

// What the sigmoid is of by which an activation multiplies x. GELU by tanh is x * sigmoid(2 * the argument of tanh).
template <Activation kActivation>
inline Simd::F sigmoid_argument(Simd::F x) {
  if constexpr (kActivation == Activation::silu) return x;
  constexpr float kTwice = 2 * 0.7978845608f;  // of the root of 2 / pi
  const Simd::F factor = Simd::fma(Simd::mul(x, x), Simd::set1(kTwice * 0.044715f), Simd::set1(kTwice));
  return Simd::mul(x, factor);
}

template <typename T, Activation kActivation>
void gate_mul_of(const GateMulCall& call, Range rows) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const T* gate = static_cast<const T*>(call.gate_up) + row * call.row_stride;
    const T* up = gate + call.dim;
    T* out = static_cast<T*>(call.out) + row * call.dim;
    each_vector(call.dim, [&](int64_t d, auto n) {
      const Simd::F x = load(gate + d, n);
      const Simd::F negative = Simd::sub(Simd::zero(), sigmoid_argument<kActivation>(x));
      const Simd::F denominator = Simd::add(Simd::set1(1.0f), exponential(negative));
      store(out + d, Simd::mul(Simd::div(x, denominator), load(up + d, n)), n);
    });
  }
}

template <typename T>
void gate_mul_of(const GateMulCall& call, Range rows) {
  if (call.activation == Activation::silu) {
    gate_mul_of<T, Activation::silu>(call, rows);
  } else {
    gate_mul_of<T, Activation::gelu_tanh>(call, rows);
  }
}

void gate_mul_share(const GateMulCall& call, Range rows) {
  if (call.dtype == Dtype::f32) {
    gate_mul_of<float>(call, rows);
  } else {
    gate_mul_of<bf16>(call, rows);
  }
}

}  // namespace
}  // namespace tercet
