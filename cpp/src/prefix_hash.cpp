#include "tercet/prefix_hash.h"

#include <vector>

#include "tercet/blake2s.h"

namespace tercet {

PrefixHash hash_salt(const void* salt, std::size_t size) {
  PrefixHash hash;
  blake2s(salt, size, "tercet-s", hash.bytes.data(), hash.bytes.size());
  return hash;
}

PrefixHash hash_block(const PrefixHash& parent, const std::int32_t* token_ids, int count) {
  std::vector<std::uint8_t> message(parent.bytes.size() + 4 * static_cast<std::size_t>(count));
  std::uint8_t* p = message.data();
  for (const std::uint8_t byte : parent.bytes) *p++ = byte;
  for (int i = 0; i < count; ++i) {
    const auto id = static_cast<std::uint32_t>(token_ids[i]);
    for (int shift = 0; shift < 32; shift += 8) *p++ = static_cast<std::uint8_t>(id >> shift);
  }
  PrefixHash hash;
  blake2s(message.data(), message.size(), "tercet-b", hash.bytes.data(), hash.bytes.size());
  return hash;
}

}  // namespace tercet
