#include <cuda.h>

#include "kernel.cuh"
#include "tensor_map.h"

namespace tercet::cuda {
namespace {

constexpr int kTileColumns = 64;

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver is not linked to: the extension also loads where there is none.
Encode find_encode() {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(kName, &found, 12000, cudaEnableDefault, &result), kName);
#else
  check(cudaGetDriverEntryPoint(kName, &found, cudaEnableDefault, &result), kName);
#endif
  if (found == nullptr) throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(found);
}

}  // namespace

TensorMap tensor_map(const void* matrix, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                     int tile_rows) {
  static const Encode encode = find_encode();
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  TensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_stride) * 2};
  const cuuint32_t tile[] = {kTileColumns, static_cast<cuuint32_t>(tile_rows)}, steps[] = {1, 1};
  const CUresult error =
      encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(matrix), sizes,
             strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (error != CUDA_SUCCESS) {
    throw std::runtime_error("a matrix cannot be read in tiles: driver error " + std::to_string(error));
  }
  return map;
}

}  // namespace tercet::cuda
