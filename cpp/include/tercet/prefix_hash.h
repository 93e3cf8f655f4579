// Names of KV blocks in the prefix cache: a block's name depends on all tokens before it and on a salt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tercet {

// 128 bits of BLAKE2s. Finding two chains with one name takes about 2^64 work, so one tenant cannot aim at another's
// blocks even if salts leak; the pool still compares token ids on every hit, which costs 4 bytes a slot.
struct PrefixHash {
  std::array<std::uint8_t, 16> bytes{};

  friend bool operator==(const PrefixHash& a, const PrefixHash& b) { return a.bytes == b.bytes; }
  friend bool operator!=(const PrefixHash& a, const PrefixHash& b) { return !(a == b); }
};

struct PrefixHashHasher {
  // The bytes are uniform already.
  std::size_t operator()(const PrefixHash& hash) const {
    std::size_t value;
    std::memcpy(&value, hash.bytes.data(), sizeof value);
    return value;
  }
};

// Where the chain of a salt starts: BLAKE2s-128 of the salt with personalization "tercet-s".
PrefixHash hash_salt(const void* salt, std::size_t size);

// The name of a full block: BLAKE2s-128 with personalization "tercet-b" of the parent's 16 bytes and then `count` token
// ids, 4 bytes each, little endian. The parent is the block before it, or the salt's hash.
PrefixHash hash_block(const PrefixHash& parent, const std::int32_t* token_ids, int count);

}  // namespace tercet
