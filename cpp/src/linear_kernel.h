// The matrix product over a share of rows and tiles. Included by kernels_*.cpp alone.
#pragma once

#include "tercet/linear.h"
#include "tile.h"

namespace tercet {
namespace {

template <int kRows, int kVectors, typename In, typename Out>
void linear_tile(const LinearCall& call, int64_t row, int64_t tile, bool prefetch) {
  constexpr int kWidth = PackedWeight::kTileOutputs;
  const PackedWeight& weight = *call.weight;
  Simd::F sums[kRows][kVectors];
  for (auto& sums_of_row : sums) {
    for (auto& sum : sums_of_row) sum = Simd::zero();
  }
  add_products(sums, static_cast<const In*>(call.x) + row * call.x_stride, call.x_stride,
               reinterpret_cast<const In*>(weight.tile(tile)), kWidth, weight.depth() * kWidth, weight.depth(),
               prefetch);
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = (tile + v) * kWidth;
    const int64_t num_columns = std::min<int64_t>(kWidth, weight.num_outputs() - column);
    for (int m = 0; m < kRows; ++m) {
      Simd::F y = sums[m][v];
      if (weight.bias() != nullptr) y = Simd::add(y, Simd::load(weight.bias() + column));
      Out* out = static_cast<Out*>(call.out) + (row + m) * weight.num_outputs() + column;
      if (num_columns == kWidth) {
        Simd::store(out, y);
      } else {
        Simd::store(out, y, static_cast<int>(num_columns));
      }
    }
  }
}

template <typename In, typename Out>
void linear_share_of(const LinearCall& call, Range rows, Range tiles) {
  int64_t num_tiles = 0;
  for (int64_t tile = tiles.begin; tile < tiles.end; tile += num_tiles) {
    num_tiles = std::min<int64_t>(Simd::kTileVectors, tiles.end - tile);
    // The panel's rows in equal parts: six and two rows would read the weights twice for what four and four do.
    const int64_t num_parts = (rows.end - rows.begin + Simd::kTileRows - 1) / Simd::kTileRows;
    for (int64_t part = 0; part < num_parts; ++part) {
      const Range some = share(rows.end - rows.begin, part, num_parts);
      with_count<Simd::kTileRows>(static_cast<int>(some.end - some.begin), [&](auto num_rows) {
        with_count<Simd::kTileVectors>(static_cast<int>(num_tiles), [&](auto num_vectors) {
          linear_tile<num_rows.value, num_vectors.value, In, Out>(call, rows.begin + some.begin, tile, part == 0);
        });
      });
    }
  }
}

void linear_share(const LinearCall& call, Range rows, Range tiles) {
  if (call.weight->dtype() == Dtype::f32) {
    linear_share_of<float, float>(call, rows, tiles);
  } else if (call.out_dtype == Dtype::bf16) {
    linear_share_of<bf16, bf16>(call, rows, tiles);
  } else {
    linear_share_of<bf16, float>(call, rows, tiles);
  }
}

}  // namespace
}  // namespace tercet
