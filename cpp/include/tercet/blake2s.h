// BLAKE2s, unkeyed and sequential, as RFC 7693 defines it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tercet {

// Writes the `out_size` (1 to 32) bytes of the digest of `data` to `out`. `person` is the 8-byte personalization of the
// BLAKE2 parameter block: digests of different uses never collide by construction.
void blake2s(const void* data, std::size_t size, const char person[8], std::uint8_t* out, std::size_t out_size);

}  // namespace tercet
