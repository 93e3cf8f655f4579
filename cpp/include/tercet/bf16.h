// bfloat16 as storage: the upper half of a float's bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace tercet {

struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

inline float to_float(float x) { return x; }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
inline bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace tercet
