// A matrix in global memory as the copy engine of Hopper takes tiles of it. Plain C++: bindings include it.
#pragma once

#include <cstdint>

namespace tercet::cuda {

// What cuda.h calls CUtensorMap, which wants this alignment.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

// Rows of `columns` 2-byte elements, `row_stride` elements apart, in tiles of 64 columns and `tile_rows` rows. In
// shared memory a tile's rows are 128 bytes, their pieces of 16 bytes swizzled (warpgroup.cuh); what lies outside is
// zero. Throws std::runtime_error if the address or the stride is not a multiple of 16 bytes, or without a driver.
TensorMap tensor_map(const void* matrix, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                     int tile_rows);

}  // namespace tercet::cuda
