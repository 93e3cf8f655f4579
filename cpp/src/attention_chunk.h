// One chunk of keys and values: where it lies in the cache, and the forms in which it is multiplied. Included by
// kernels_*.cpp alone.
#pragma once

#include <algorithm>

#include "tercet/attention.h"
#include "tile.h"

namespace tercet {
namespace {

// Where the keys and values of one chunk lie in the cache.
template <typename T>
struct ChunkRows {
  const T* keys[kChunkKeys];
  const T* values[kChunkKeys];
};

template <typename T>
void find_rows(const AttentionCall& call, const AttentionTile& tile, int64_t first_key, int64_t num_keys,
               ChunkRows<T>& rows) {
  const int32_t* table = call.block_tables + tile.sequence * call.table_width;
  // A place and not a pointer: without keys to find it may lie far past the table.
  int64_t place = first_key / call.block_size;
  int64_t offset = first_key % call.block_size;
  for (int64_t key = 0; key < num_keys; ++key) {
    const int64_t at = ((table[place] * call.num_kv_heads + tile.kv_head) * call.block_size + offset) * call.head_dim;
    rows.keys[key] = static_cast<const T*>(call.k_cache) + at;
    rows.values[key] = static_cast<const T*>(call.v_cache) + at;
    if (++offset == call.block_size) {
      offset = 0;
      ++place;
    }
  }
}

// Asks for keys and values begin..end of a chunk. Blocks lie scattered, too short each for the hardware to run ahead.
template <typename T>
void prefetch_rows(const ChunkRows<T>& rows, Range keys, int64_t dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t key = keys.begin; key < keys.end; ++key) {
    for (int64_t d = 0; d < dim; d += kLine) {
      __builtin_prefetch(rows.keys[key] + d);
      __builtin_prefetch(rows.values[key] + d);
    }
  }
}

// The chunk's keys turned to [words of D][kChunkKeys], where a word is a float or a pair of bf16. Keys past num_keys
// are not read: their columns become zeros, so that whole vectors of them may be computed. Meanwhile the first num_next
// rows of the next chunk are asked for.
template <typename T>
void turn_keys(const ChunkRows<T>& rows, int64_t num_keys, int64_t dim, float* turned, const ChunkRows<T>& next,
               int64_t num_next) {
  const int64_t num_words = dim * static_cast<int64_t>(sizeof(T)) / 4;
  for (int64_t group = 0; group < num_keys; group += 16) {
    prefetch_rows(next, {group, std::min(group + 16, num_next)}, dim);
    for (int64_t word = 0; word < num_words; word += 16) {
      const auto num_rows = static_cast<int>(std::min<int64_t>(16, num_keys - group));
      const auto width = static_cast<int>(std::min<int64_t>(16, num_words - word));
      const auto at = [&](int i) { return reinterpret_cast<const float*>(rows.keys[group + i]) + word; };
      Simd::F square[16];
      if (num_rows == 16 && width == 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) square[i] = Simd::load(at(i));
      } else {
        for (int i = 0; i < 16; ++i) square[i] = i < num_rows ? Simd::load(at(i), width) : Simd::zero();
      }
      Simd::transpose(square);
      float* to = turned + word * kChunkKeys + group;
      if (width == 16) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) Simd::store(to + i * kChunkKeys, square[i]);
      } else {
        for (int i = 0; i < width; ++i) Simd::store(to + i * kChunkKeys, square[i]);
      }
    }
  }
}

// The chunk's values as floats, [num_keys, padded D].
template <typename T>
void widen_values(const ChunkRows<T>& rows, int64_t num_keys, int64_t dim, float* values) {
  const int64_t padded = padded_head_dim(dim);
  for (int64_t key = 0; key < num_keys; ++key) {
    const T* from = rows.values[key];
    float* to = values + key * padded;
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) Simd::store(to + d, Simd::load(from + d));
    if (d < dim) Simd::store(to + d, Simd::load(from + d, static_cast<int>(dim - d)));
  }
}

// Values of a chunk as widened, and as they lie in the cache; `at` gives the vectors from element d on of one key.
struct WideValues {
  const float* data;
  int64_t padded;
  const float* at(int64_t key, int64_t d) const { return data + key * padded + d; }
};

template <typename T>
struct CachedValues {
  const ChunkRows<T>& rows;
  const T* at(int64_t key, int64_t d) const { return rows.values[key] + d; }
};

}  // namespace
}  // namespace tercet
