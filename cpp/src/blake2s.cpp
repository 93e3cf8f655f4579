#include "tercet/blake2s.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>

namespace tercet {
namespace {

constexpr std::size_t kBlockBytes = 64;

constexpr std::uint32_t kIv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr std::uint8_t kSigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

std::uint32_t load_le32(const std::uint8_t* p) {
  return std::uint32_t{p[0]} | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}

std::uint32_t rotate_right(std::uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

void mix(std::uint32_t* v, int a, int b, int c, int d, std::uint32_t x, std::uint32_t y) {
  v[a] += v[b] + x;
  v[d] = rotate_right(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotate_right(v[b] ^ v[c], 12);
  v[a] += v[b] + y;
  v[d] = rotate_right(v[d] ^ v[a], 8);
  v[c] += v[d];
  v[b] = rotate_right(v[b] ^ v[c], 7);
}

void compress(std::uint32_t h[8], const std::uint8_t block[kBlockBytes], std::uint64_t bytes_so_far, bool last) {
  std::uint32_t m[16];
  for (int i = 0; i < 16; ++i) m[i] = load_le32(block + 4 * i);
  std::uint32_t v[16];
  for (int i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = kIv[i];
  }
  v[12] ^= static_cast<std::uint32_t>(bytes_so_far);
  v[13] ^= static_cast<std::uint32_t>(bytes_so_far >> 32);
  if (last) v[14] = ~v[14];
  for (const auto& s : kSigma) {
    mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
    mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
    mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
    mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
    mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
    mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
    mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
    mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace

void blake2s(const void* data, std::size_t size, const char person[8], std::uint8_t* out, std::size_t out_size) {
  assert(out_size >= 1 && out_size <= 32);
  std::uint32_t h[8];
  std::copy(std::begin(kIv), std::end(kIv), h);
  // The parameter block: digest length, no key, fanout 1, depth 1, no salt, the personalization in its last 8 bytes.
  h[0] ^= 0x01010000u ^ static_cast<std::uint32_t>(out_size);
  h[6] ^= load_le32(reinterpret_cast<const std::uint8_t*>(person));
  h[7] ^= load_le32(reinterpret_cast<const std::uint8_t*>(person) + 4);

  const auto* bytes = static_cast<const std::uint8_t*>(data);
  std::size_t done = 0;
  while (size - done > kBlockBytes) {
    compress(h, bytes + done, done + kBlockBytes, false);
    done += kBlockBytes;
  }
  std::uint8_t tail[kBlockBytes] = {};
  if (size > done) std::memcpy(tail, bytes + done, size - done);
  compress(h, tail, size, true);
  for (std::size_t i = 0; i < out_size; ++i) out[i] = static_cast<std::uint8_t>(h[i / 4] >> (8 * (i % 4)));
}

}  // namespace tercet
