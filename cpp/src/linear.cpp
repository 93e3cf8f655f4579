#include "tercet/linear.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "tercet/bf16.h"
#include "tercet/kernels.h"

namespace tercet {
namespace {

// Below this many multiply-adds a product is done sooner than a second thread has begun.
constexpr int64_t kMinProductsToShare = 32 * 1024;
// What a thread takes at once: a panel of the widest register tile.
constexpr int64_t kTilesPerPiece = 4;
constexpr int64_t kRowsPerPart = 256;

// Weights are tens to hundreds of MB read once a step: with small pages each 4 KB costs a walk of the page table.
char* map_memory(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<char*>(data);
}

}  // namespace

void PackedWeight::Unmap::operator()(char* data) const { munmap(data, bytes); }

PackedWeight::PackedWeight(const void* weight, Dtype dtype, int64_t num_outputs, int64_t depth, int64_t row_stride,
                           const void* bias)
    : dtype_(dtype), num_outputs_(num_outputs), depth_(depth) {
  if (num_outputs < 1 || depth < 1) {
    throw std::invalid_argument("a weight must not be empty, is [" + std::to_string(num_outputs) + ", " +
                                std::to_string(depth) + "]");
  }
  if (dtype == Dtype::bf16 && depth % 2 != 0) {
    throw std::invalid_argument("a bfloat16 weight needs an even depth, has " + std::to_string(depth));
  }
  const size_t bytes = tile_bytes() * num_tiles();
  data_ = {map_memory(bytes), Unmap{bytes}};
  parallel(true, num_tiles(), 1, [&](Range tiles) {
    if (dtype == Dtype::f32) {
      pack(static_cast<const float*>(weight), row_stride, tiles);
    } else {
      pack(static_cast<const bf16*>(weight), row_stride, tiles);
    }
  });
  if (bias == nullptr) return;
  bias_.resize(num_tiles() * kTileOutputs);
  for (int64_t n = 0; n < num_outputs; ++n) {
    bias_[n] = dtype == Dtype::f32 ? static_cast<const float*>(bias)[n] : to_float(static_cast<const bf16*>(bias)[n]);
  }
}

template <typename T>
void PackedWeight::pack(const T* weight, int64_t row_stride, Range tiles) {
  constexpr int64_t kGroup = sizeof(T) == 2 ? 2 : 1;  // neighbours in depth that stay neighbours
  for (int64_t index = tiles.begin; index < tiles.end; ++index) {
    T* to = reinterpret_cast<T*>(data_.get() + index * tile_bytes());
    // Fresh memory is zero: outputs past the last need no writing.
    const int64_t num_columns = std::min<int64_t>(kTileOutputs, num_outputs_ - index * kTileOutputs);
    for (int64_t k = 0; k < depth_; k += kGroup) {
      for (int64_t column = 0; column < num_columns; ++column) {
        const T* from = weight + (index * kTileOutputs + column) * row_stride + k;
        for (int64_t i = 0; i < kGroup; ++i) to[(k / kGroup * kTileOutputs + column) * kGroup + i] = from[i];
      }
    }
  }
}

void linear(const LinearCall& call, Isa isa) {
  if (call.num_rows == 0) return;
  const PackedWeight& weight = *call.weight;
  const auto run = kernels(isa).linear;
  const int64_t num_tiles = weight.num_tiles();
  const bool shared = call.num_rows * weight.depth() * weight.num_outputs() >= kMinProductsToShare;
  // Columns are shared out, as each weight is then read once. Rows too only where there are so many that the parts of
  // them still read each weight for many rows.
  const int64_t num_row_parts = shared ? std::max<int64_t>(1, call.num_rows / kRowsPerPart) : 1;
  parallel(shared, num_row_parts * num_tiles, kTilesPerPiece, [&](Range piece) {
    for (int64_t begin = piece.begin; begin < piece.end;) {
      const int64_t part = begin / num_tiles;
      const int64_t end = std::min(piece.end, (part + 1) * num_tiles);
      run(call, share(call.num_rows, part, num_row_parts), {begin - part * num_tiles, end - part * num_tiles});
      begin = end;
    }
  });
}

}  // namespace tercet
