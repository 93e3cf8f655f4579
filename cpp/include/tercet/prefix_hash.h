// Names of KV blocks in the prefix cache: a block's name depends on all tokens before it and on a salt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tercet {

// 128 bits of BLAKE2s. Finding two chains with one name takes about 2^64 work, so one tenant cannot aim at another's
// blocks even if salts leak; the pool still compares token ids on every hit, which costs 4 bytes a slot.
struct PrefixHash {
  std::array<std::uint8_t, 16> bytes{};

  friend bool operator==(const PrefixHash& a, const PrefixHash& b) { return a.bytes == b.bytes; }
  friend bool operator!=(const PrefixHash& a, const PrefixHash& b) { return !(a == b); }
};

// What stands for a block outside of its worker: the first 8 bytes of its name, little endian. Two blocks may share
// one; whoever trusts it can only be wrong about where a prefix is, never about what it holds.
inline std::uint64_t prefix_key(const PrefixHash& hash) {
  std::uint64_t key = 0;
  for (int i = 7; i >= 0; --i) key = key << 8 | hash.bytes[i];
  return key;
}

struct PrefixHashHasher {
  // The bytes are uniform already.
  std::size_t operator()(const PrefixHash& hash) const { return static_cast<std::size_t>(prefix_key(hash)); }
};

// Where the chain of a salt starts: BLAKE2s-128 of the salt with personalization "tercet-s".
PrefixHash hash_salt(const void* salt, std::size_t size);

// The name of a full block: BLAKE2s-128 with personalization "tercet-b" of the parent's 16 bytes and then `count` token
// ids, 4 bytes each, little endian. The parent is the block before it, or the salt's hash.
PrefixHash hash_block(const PrefixHash& parent, const std::int32_t* token_ids, int count);

}  // namespace tercet
