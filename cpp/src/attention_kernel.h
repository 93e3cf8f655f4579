// Attention of one tile of queries over one segment of keys. Included by kernels_*.cpp alone.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention_chunk.h"
#include "tercet/attention.h"
#include "tile.h"

namespace tercet {
namespace {

// scores [rows, kChunkKeys] = queries [rows, D] . turned keys, for rows begin..end and whole vectors of keys.
template <typename T>
void score_rows(const T* queries, const float* turned, float* scores, int64_t dim, Range rows, int num_vectors) {
  // In elements: turned rows are kChunkKeys words apart, and a word holds as many elements of depth as of width.
  constexpr ptrdiff_t kVectorStride = 16 * 4 / sizeof(T);
  for (int64_t row = rows.begin; row < rows.end; row += Simd::kTileRows) {
    const int num_rows = static_cast<int>(std::min<int64_t>(Simd::kTileRows, rows.end - row));
    for (int first = 0; first < num_vectors; first += Simd::kTileVectors) {
      with_count<Simd::kTileRows>(num_rows, [&](auto rows_in_tile) {
        with_count<Simd::kTileVectors>(std::min(Simd::kTileVectors, num_vectors - first), [&](auto vectors_in_tile) {
          Simd::F sums[rows_in_tile.value][vectors_in_tile.value];
          for (auto& sums_of_row : sums) {
            for (auto& sum : sums_of_row) sum = Simd::zero();
          }
          add_products(sums, queries + row * dim, dim, reinterpret_cast<const T*>(turned + first * 16), kChunkKeys,
                       kVectorStride, dim);
          for (int m = 0; m < rows_in_tile.value; ++m) {
            for (int v = 0; v < vectors_in_tile.value; ++v) {
              Simd::store(scores + (row + m) * kChunkKeys + (first + v) * 16, sums[m][v]);
            }
          }
        });
      });
    }
  }
}

// What a row sees of a chunk: keys begin..end of it.
struct Seen {
  int begin;
  int end;
};

// cap * tanh(x / cap), within some last bits of cap.
inline Simd::F softcapped(Simd::F x, float cap) {
  const Simd::F power = exponential(Simd::mul(x, Simd::set1(2.0f / cap)));
  const Simd::F rest = Simd::div(Simd::set1(2.0f), Simd::add(power, Simd::set1(1.0f)));
  return Simd::mul(Simd::set1(cap), Simd::sub(Simd::set1(1.0f), rest));
}

// Puts `filler` in the place of the first `num_keys` keys of a row's vectors.
template <int kVectors>
inline void replace_first(Simd::F (&x)[kVectors], int num_keys, Simd::F filler) {
  for (int v = 0; v < kVectors && v * 16 < num_keys; ++v)
    x[v] = Simd::head(filler, std::min(num_keys - v * 16, 16), x[v]);
}

// Turns the scores of the keys that a row sees, of which the last lies in the last of kVectors vectors, into weights
// e^(score - largest), updating the row's state, and returns what its earlier sums must be multiplied by.
template <int kVectors>
float soften_row(float* scores, Seen seen, const AttentionCall& call, float* largest, float* sum) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int num_last = seen.end - (kVectors - 1) * 16;
  Simd::F x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = Simd::mul(Simd::load(scores + v * 16), Simd::set1(call.scale));
  if (call.softcap > 0) {
    for (int v = 0; v < kVectors; ++v) x[v] = softcapped(x[v], call.softcap);
  }
  replace_first(x, seen.begin, Simd::set1(kNone));
  x[kVectors - 1] = Simd::head(x[kVectors - 1], num_last, Simd::set1(kNone));
  Simd::F top = x[0];
  for (int v = 1; v < kVectors; ++v) top = Simd::max(top, x[v]);
  const float next = std::max(*largest, Simd::largest(top));
  for (int v = 0; v < kVectors; ++v) x[v] = exponential(Simd::sub(x[v], Simd::set1(next)));
  replace_first(x, seen.begin, Simd::zero());
  x[kVectors - 1] = Simd::head(x[kVectors - 1], num_last, Simd::zero());
  Simd::F total = x[0];
  for (int v = 1; v < kVectors; ++v) total = Simd::add(total, x[v]);
  for (int v = 0; v < kVectors; ++v) Simd::store(scores + v * 16, x[v]);
  float correction = 1.0f;
  if (next != *largest) {
    float lanes[16];
    Simd::store(lanes, exponential(Simd::set1(*largest - next)));
    correction = lanes[0];
  }
  *sum = *sum * correction + Simd::sum(total);
  *largest = next;
  return correction;
}

// out [rows, padded D] = corrections * out + weights [rows, kChunkKeys] . values, over keys begin..end. An element is
// one chain of multiply-adds in the order of keys, wherever the values are read.
template <int kRows, typename Values>
void add_values(const float* weights, const float* corrections, const Values& values, float* out, int64_t padded,
                Range keys) {
  for (int64_t d = 0; d < padded; d += Simd::kTileVectors * 16) {
    const int num_vectors = static_cast<int>(std::min<int64_t>(Simd::kTileVectors, (padded - d) / 16));
    with_count<Simd::kTileVectors>(num_vectors, [&](auto vectors_in_tile) {
      constexpr int kVectors = vectors_in_tile.value;
      Simd::F sums[kRows][kVectors];
      for (int m = 0; m < kRows; ++m) {
        for (int v = 0; v < kVectors; ++v) {
          sums[m][v] = Simd::load(out + m * padded + d + v * 16);
          if (corrections != nullptr) sums[m][v] = Simd::mul(sums[m][v], Simd::set1(corrections[m]));
        }
      }
      for (int64_t key = keys.begin; key < keys.end; ++key) {
        const auto* from = values.at(key, d);
        Simd::F vectors[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) vectors[v] = Simd::load(from + v * 16);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const Simd::F weight = Simd::set1(weights[m * kChunkKeys + key]);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) sums[m][v] = Simd::fma(weight, vectors[v], sums[m][v]);
        }
      }
      for (int m = 0; m < kRows; ++m) {
        for (int v = 0; v < kVectors; ++v) Simd::store(out + m * padded + d + v * 16, sums[m][v]);
      }
    });
  }
}

// As add_values for rows begin..end, of which row r sees seen(r), no less far than the row before. What some of a
// tile's rows do not see they get one row at a time: with a weight of zero, a NaN or an infinity there would still come
// through.
template <typename Values, typename SeenBy>
void add_values_seen(const float* weights, const float* corrections, const Values& values, float* out, int64_t padded,
                     Range rows, const SeenBy& seen) {
  const auto add_to_row = [&](int64_t row, const float* correction, int begin, int end) {
    add_values<1>(weights + row * kChunkKeys, correction, values, out + row * padded, padded, {begin, end});
  };
  for (int64_t row = rows.begin; row < rows.end; row += Simd::kTileRows) {
    const int count = static_cast<int>(std::min<int64_t>(Simd::kTileRows, rows.end - row));
    const Seen first = seen(row);
    if (seen(row + count - 1).begin != first.begin) {
      for (int64_t one = row; one < row + count; ++one) {
        add_to_row(one, corrections + one, seen(one).begin, seen(one).end);
      }
      continue;
    }
    with_count<Simd::kTileRows>(count, [&](auto rows_in_tile) {
      add_values<rows_in_tile.value>(weights + row * kChunkKeys, corrections + row, values, out + row * padded, padded,
                                     {first.begin, first.end});
    });
    for (int64_t more = row; more < row + count; ++more) {
      if (seen(more).end != first.end) add_to_row(more, nullptr, first.end, seen(more).end);
    }
  }
}

template <typename T>
void attend_of(const AttentionCall& call, const AttentionTile& tile, Range segment, AttentionState state,
               float* scratch) {
  const int64_t ratio = call.num_heads / call.num_kv_heads;
  const int64_t num_rows = tile.num_tokens * ratio;
  const int64_t dim = call.head_dim;
  const int64_t padded = padded_head_dim(dim);
  float* turned = scratch;
  float* wide = turned + padded * kChunkKeys;
  float* scores = wide + padded * kChunkKeys;
  float* corrections = scores + num_rows * kChunkKeys;
  T* queries = reinterpret_cast<T*>(corrections + num_rows);

  for (int64_t row = 0; row < num_rows; ++row) {
    const T* from = static_cast<const T*>(call.q) + (tile.first_token + row / ratio) * call.q_token_stride +
                    (tile.kv_head * ratio + row % ratio) * call.q_head_stride;
    std::memcpy(queries + row * dim, from, dim * sizeof(T));
    state.largest[row] = -std::numeric_limits<float>::infinity();
    state.sum[row] = 0.0f;
  }
  std::fill_n(state.values, num_rows * padded, 0.0f);

  // The next chunk is asked for while one is computed, past the segment's end too: that segment mostly follows.
  const int64_t num_tile_keys = tile.first_position + tile.num_tokens;
  ChunkRows<T> buffers[2];
  const auto find = [&](int64_t first_key, ChunkRows<T>& rows) {
    const int64_t num_keys = std::clamp<int64_t>(num_tile_keys - first_key, 0, kChunkKeys);
    find_rows(call, tile, first_key, num_keys, rows);
    return num_keys;
  };
  // Of the tile's first segment, chunks that its first token's window has left behind are left out.
  const int64_t first_of_tile = first_seen(call, tile.first_position) / kChunkKeys * kChunkKeys;
  const int64_t begin = std::max(segment.begin, first_of_tile);
  const int64_t num_first = find(begin, buffers[0]);
  if (begin == first_of_tile) prefetch_rows(buffers[0], {0, num_first}, dim);
  for (int64_t first_key = begin; first_key < segment.end; first_key += kChunkKeys) {
    const int64_t num_keys = std::min(kChunkKeys, segment.end - first_key);
    // What of the chunk's keys a row sees: nothing before its own position's chunk, nor behind its window.
    const auto seen = [&](int64_t row) -> Seen {
      const int64_t position = tile.first_position + row / ratio;
      return {static_cast<int>(std::clamp<int64_t>(first_seen(call, position) - first_key, 0, num_keys)),
              static_cast<int>(std::clamp<int64_t>(position + 1 - first_key, 0, num_keys))};
    };
    int64_t first_row = 0, end_row = num_rows;
    while (first_row < num_rows && seen(first_row).end == 0) first_row += ratio;
    while (end_row > first_row && seen(end_row - 1).begin == num_keys) end_row -= ratio;
    const Range some_see = {first_row, end_row};
    const ChunkRows<T>& rows = buffers[(first_key - begin) / kChunkKeys % 2];
    ChunkRows<T>& next = buffers[&rows == &buffers[0]];
    const int64_t num_next = find(first_key + kChunkKeys, next);
    turn_keys(rows, num_keys, dim, turned, next, num_next);
    score_rows(queries, turned, scores, dim, some_see, static_cast<int>((num_keys + 15) / 16));
    for (int64_t row = first_row; row < end_row; ++row) {
      const Seen of_row = seen(row);
      with_count<kChunkKeys / 16>((of_row.end + 15) / 16, [&](auto num_vectors) {
        corrections[row] = soften_row<num_vectors.value>(scores + row * kChunkKeys, of_row, call, &state.largest[row],
                                                         &state.sum[row]);
      });
    }
    // One tile of rows, as in decoding, reads each value once: straight from the cache.
    if (num_rows <= Simd::kTileRows && dim == padded) {
      add_values_seen(scores, corrections, CachedValues<T>{rows}, state.values, padded, some_see, seen);
    } else {
      widen_values(rows, num_keys, dim, wide);
      add_values_seen(scores, corrections, WideValues{wide, padded}, state.values, padded, some_see, seen);
    }
  }
}

template <typename T>
void finish_of(const AttentionCall& call, const AttentionTile& tile, AttentionState state) {
  const int64_t ratio = call.num_heads / call.num_kv_heads;
  const int64_t dim = call.head_dim;
  for (int64_t row = 0; row < tile.num_tokens * ratio; ++row) {
    T* out = static_cast<T*>(call.out) +
             ((tile.first_token + row / ratio) * call.num_heads + tile.kv_head * ratio + row % ratio) * dim;
    const float* values = state.values + row * padded_head_dim(dim);
    const Simd::F sum = Simd::set1(state.sum[row]);
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) Simd::store(out + d, Simd::div(Simd::load(values + d), sum));
    if (d < dim) Simd::store(out + d, Simd::div(Simd::load(values + d), sum), static_cast<int>(dim - d));
  }
}

// Fresh state of the tile over the keys of one segment, of which its last token sees all.
void attend(const AttentionCall& call, const AttentionTile& tile, Range segment, AttentionState state, float* scratch) {
  if (call.dtype == Dtype::f32) {
    attend_of<float>(call, tile, segment, state, scratch);
  } else {
    attend_of<bf16>(call, tile, segment, state, scratch);
  }
}

// Writes the tile's rows of call.out from their final state.
void finish(const AttentionCall& call, const AttentionTile& tile, AttentionState state) {
  if (call.dtype == Dtype::f32) {
    finish_of<float>(call, tile, state);
  } else {
    finish_of<bf16>(call, tile, state);
  }
}

}  // namespace
}  // namespace tercet
