// Attention of one tile of queries over one segment of keys. Included by kernels_*.cpp alone.
#pragma once

#include <algorithm>
#include <limits>

#include "tercet/attention.h"
#include "tile.h"

namespace tercet {
namespace {

// Keys and values of one chunk as floats: keys turned to [D][kChunkKeys], values [kChunkKeys][padded D].
template <typename T>
void stage_chunk(const AttentionCall& call, const AttentionTile& tile, int64_t first_key, int64_t num_keys, float* keys,
                 float* values) {
  const int32_t* table = call.block_tables + tile.sequence * call.table_width;
  const int64_t dim = call.head_dim;
  const int64_t padded = padded_head_dim(dim);
  // Keys past num_keys are not read: their columns become zeros, so that whole vectors of them may be computed.
  for (int64_t group = 0; group < num_keys; group += 16) {
    const T* k_rows[16];
    const int64_t num_rows = std::min<int64_t>(16, num_keys - group);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t key = first_key + group + i;
      const int64_t block = table[key / call.block_size];
      const int64_t at = ((block * call.num_kv_heads + tile.kv_head) * call.block_size + key % call.block_size) * dim;
      k_rows[i] = static_cast<const T*>(call.k_cache) + at;
      const T* v_row = static_cast<const T*>(call.v_cache) + at;
      float* to = values + (group + i) * padded;
      int64_t d = 0;
      for (; d + 16 <= dim; d += 16) Simd::store(to + d, Simd::load(v_row + d));
      if (d < dim) Simd::store(to + d, Simd::load(v_row + d, static_cast<int>(dim - d)));
    }
    for (int64_t d = 0; d < dim; d += 16) {
      const int width = static_cast<int>(std::min<int64_t>(16, dim - d));
      Simd::F rows[16];
      for (int i = 0; i < 16; ++i) {
        rows[i] = i >= num_rows ? Simd::zero()
                  : width == 16 ? Simd::load(k_rows[i] + d)
                                : Simd::load(k_rows[i] + d, width);
      }
      Simd::transpose(rows);
      for (int i = 0; i < width; ++i) Simd::store(keys + (d + i) * kChunkKeys + group, rows[i]);
    }
  }
}

// scores [rows, kChunkKeys] = queries [rows, padded D] . keys, for rows begin..end and whole vectors of keys.
void score_rows(const float* queries, const float* keys, float* scores, int64_t dim, Range rows, int num_vectors) {
  const int64_t padded = padded_head_dim(dim);
  for (int64_t row = rows.begin; row < rows.end; row += Simd::kTileRows) {
    const int num_rows = static_cast<int>(std::min<int64_t>(Simd::kTileRows, rows.end - row));
    for (int first = 0; first < num_vectors; first += Simd::kTileVectors) {
      with_count<Simd::kTileRows>(num_rows, [&](auto rows_in_tile) {
        with_count<Simd::kTileVectors>(std::min(Simd::kTileVectors, num_vectors - first), [&](auto vectors_in_tile) {
          Simd::F sums[rows_in_tile.value][vectors_in_tile.value];
          for (auto& sums_of_row : sums) {
            for (auto& sum : sums_of_row) sum = Simd::zero();
          }
          add_products(sums, queries + row * padded, padded, keys + first * 16, kChunkKeys, 16, dim);
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

// Turns the first num_keys scores of a row into weights e^(score - largest), updating the row's state, and returns
// what its earlier sums must be multiplied by.
float soften_row(float* scores, int64_t num_keys, float scale, float* largest, float* sum) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  constexpr int kMaxVectors = kChunkKeys / 16;
  const int num_vectors = static_cast<int>((num_keys + 15) / 16);
  const int num_last = static_cast<int>(num_keys - (num_vectors - 1) * 16);
  Simd::F x[kMaxVectors];
  Simd::F top = Simd::set1(kNone);
  for (int v = 0; v < num_vectors; ++v) {
    x[v] = Simd::mul(Simd::load(scores + v * 16), Simd::set1(scale));
    if (v == num_vectors - 1) x[v] = Simd::head(x[v], num_last, Simd::set1(kNone));
    top = Simd::max(top, x[v]);
  }
  const float next = std::max(*largest, Simd::largest(top));
  Simd::F total = Simd::zero();
  for (int v = 0; v < num_vectors; ++v) {
    Simd::F weight = exponential(Simd::sub(x[v], Simd::set1(next)));
    if (v == num_vectors - 1) weight = Simd::head(weight, num_last, Simd::zero());
    Simd::store(scores + v * 16, weight);
    total = Simd::add(total, weight);
  }
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

// out [rows, padded D] = corrections * out + weights [rows, kChunkKeys] . values, over keys begin..end.
template <int kRows>
void add_values(const float* weights, const float* corrections, const float* values, float* out, int64_t padded,
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
      add_products(sums, weights + keys.begin, kChunkKeys, values + keys.begin * padded + d, padded, 16,
                   keys.end - keys.begin);
      for (int m = 0; m < kRows; ++m) {
        for (int v = 0; v < kVectors; ++v) Simd::store(out + m * padded + d + v * 16, sums[m][v]);
      }
    });
  }
}

template <typename T>
void attend_of(const AttentionCall& call, const AttentionTile& tile, Range segment, AttentionState state,
               float* scratch) {
  const int64_t ratio = call.num_heads / call.num_kv_heads;
  const int64_t num_rows = tile.num_tokens * ratio;
  const int64_t dim = call.head_dim;
  const int64_t padded = padded_head_dim(dim);
  float* keys = scratch;
  float* values = keys + padded * kChunkKeys;
  float* queries = values + padded * kChunkKeys;
  float* scores = queries + num_rows * padded;
  float* corrections = scores + num_rows * kChunkKeys;

  for (int64_t row = 0; row < num_rows; ++row) {
    const T* from = static_cast<const T*>(call.q) + (tile.first_token + row / ratio) * call.q_token_stride +
                    (tile.kv_head * ratio + row % ratio) * call.q_head_stride;
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) Simd::store(queries + row * padded + d, Simd::load(from + d));
    if (d < dim) Simd::store(queries + row * padded + d, Simd::load(from + d, static_cast<int>(dim - d)));
    state.largest[row] = -std::numeric_limits<float>::infinity();
    state.sum[row] = 0.0f;
  }
  std::fill_n(state.values, num_rows * padded, 0.0f);

  for (int64_t first_key = segment.begin; first_key < segment.end; first_key += kChunkKeys) {
    const int64_t num_keys = std::min(kChunkKeys, segment.end - first_key);
    // How many of the chunk's keys a row sees: none before its own position's chunk, then more with each token.
    const auto num_seen = [&](int64_t row) {
      return std::clamp<int64_t>(tile.first_position + row / ratio + 1 - first_key, 0, num_keys);
    };
    int64_t first_row = 0;
    while (first_row < num_rows && num_seen(first_row) == 0) first_row += ratio;
    stage_chunk<T>(call, tile, first_key, num_keys, keys, values);
    score_rows(queries, keys, scores, dim, {first_row, num_rows}, static_cast<int>((num_keys + 15) / 16));
    for (int64_t row = first_row; row < num_rows; ++row) {
      corrections[row] =
          soften_row(scores + row * kChunkKeys, num_seen(row), call.scale, &state.largest[row], &state.sum[row]);
    }
    for (int64_t row = first_row; row < num_rows; row += Simd::kTileRows) {
      const int count = static_cast<int>(std::min<int64_t>(Simd::kTileRows, num_rows - row));
      const int64_t common = num_seen(row);
      with_count<Simd::kTileRows>(count, [&](auto rows_in_tile) {
        add_values<rows_in_tile.value>(scores + row * kChunkKeys, corrections + row, values,
                                       state.values + row * padded, padded, {0, common});
      });
      // The later tokens' further keys one row at a time: a weight of zero for them in the others would still let a
      // NaN or an infinity of a later token's values through.
      for (int64_t more = row; more < row + count; ++more) {
        if (num_seen(more) == common) continue;
        add_values<1>(scores + more * kChunkKeys, nullptr, values, state.values + more * padded, padded,
                      {common, num_seen(more)});
      }
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
