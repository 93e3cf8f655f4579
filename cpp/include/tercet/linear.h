// Matrix products with a weight packed once, for every number of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tercet/cpu.h"
#include "tercet/thread_pool.h"

namespace tercet {

enum class Dtype { f32, bf16 };

inline size_t dtype_size(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

// A weight [num_outputs, depth] in tiles of 16 outputs, so that one pass over memory serves any number of rows:
// float32 as [tile][depth][16], bfloat16 as [tile][depth / 2][16][2]. Missing outputs of the last tile are zeros.
// The layout is the same for every instruction set.
class PackedWeight {
 public:
  static constexpr int kTileOutputs = 16;

  // `weight` has rows of `row_stride` elements, `bias` (may be null) num_outputs; both are read here only. bfloat16
  // needs an even depth. Throws std::invalid_argument on sizes below 1 or an odd depth, std::bad_alloc.
  PackedWeight(const void* weight, Dtype dtype, int64_t num_outputs, int64_t depth, int64_t row_stride,
               const void* bias);

  Dtype dtype() const { return dtype_; }
  int64_t num_outputs() const { return num_outputs_; }
  int64_t depth() const { return depth_; }
  int64_t num_tiles() const { return (num_outputs_ + kTileOutputs - 1) / kTileOutputs; }
  size_t tile_bytes() const { return static_cast<size_t>(depth_) * kTileOutputs * dtype_size(dtype_); }
  const char* tile(int64_t index) const { return data_.get() + index * tile_bytes(); }
  // Null if there is none; else one float for each output of each tile.
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(char* data) const;
  };

  template <typename T>
  void pack(const T* weight, int64_t row_stride, Range tiles);

  Dtype dtype_;
  int64_t num_outputs_;
  int64_t depth_;
  std::unique_ptr<char, Unmap> data_;
  std::vector<float> bias_;
};

// One product: rows x of weight.dtype() at `x_stride` elements, rows of `out_dtype` in `out`, which are contiguous.
// An output is one chain of multiply-adds over the depth: its bits depend on its row and its weights alone.
struct LinearCall {
  const PackedWeight* weight;
  const void* x;
  int64_t x_stride;
  int64_t num_rows;
  void* out;
  Dtype out_dtype;
};

// out [num_rows, num_outputs] = x [num_rows, depth] weight^T + bias, on the pool.
void linear(const LinearCall& call, Isa isa);

}  // namespace tercet
