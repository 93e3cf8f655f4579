// How tiles of K and V, as the cache stores them, become operands of products.
#pragma once

#include "e4m3.cuh"
#include "mma.cuh"

namespace tercet::cuda {

// A warp's tile of K, or of V, in shared memory: [kTokens, D] of the cache's type S.
template <typename S, int D>
struct KvTile {
  using Rows = Row<D* static_cast<int>(sizeof(S))>;
  static constexpr int kTokens = 32 / static_cast<int>(sizeof(S));
  static constexpr int kBytes = kTokens * Rows::kBytes;
};

// T: of q and the result, S: of the cache. An operand has 16 elements of q along its depth; `lane % 4` has two pairs of
// them, register i of a row's four the pair i / 2. Rows i % 2 * 8 + lane / 4.
template <typename T, typename S, int D>
struct Operands;

// A cache of the type that is multiplied: the hardware's own order.
template <typename T, int D>
struct Operands<T, T, D> {
  using Factor = T;
  using Rows = typename KvTile<T, D>::Rows;

  // Where in the 16 elements a lane's pair `half` is.
  static __device__ int query_column(int half) { return static_cast<int>(threadIdx.x) % 4 * 2 + half * 8; }
  static __device__ uint32_t query(uint32_t pair) { return pair; }

  // scores of the tile's tokens [rows, rows + 16) += q K^T; `first` is the lane's address in the tile's first rows.
  static __device__ void add_scores(float (&low)[4], float (&high)[4], const uint32_t (&q)[D / 16][4], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t keys[4];
      load_matrices(keys, Rows::advance(first, rows, k * 2));
      multiply_add<T>(low, q[k], keys[0], keys[1]);
      multiply_add<T>(high, q[k], keys[2], keys[3]);
    }
  }

  // o += weights V of the same tokens.
  static __device__ void add_values(float (&o)[D / 8][4], const uint32_t (&weights)[4], uint32_t first, int rows) {
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      uint32_t values[4];
      load_matrices_transposed(values, Rows::advance(first, rows, n * 2));
      multiply_add<T>(o[n * 2], weights, values[0], values[1]);
      multiply_add<T>(o[n * 2 + 1], weights, values[2], values[3]);
    }
  }

  // What a lane has of row `half` of o, to its place in a row of D.
  static __device__ void put(float* row, const float (&o)[D / 8][4], int half) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(row + n * 8 + threadIdx.x % 4 * 2) = {o[n][half * 2], o[n][half * 2 + 1]};
    }
  }
};

// Bytes in float16 products. Matrices of bytes are loaded as if two were one element, so that a lane gets four
// neighbours: of K along the depth, where q takes the same order; of V two columns of each of two tokens, which change
// places first and become columns of two tiles of o, the even ones and the odd ones of 16.
template <typename T, int D>
struct Operands<T, E4m3, D> {
  using Factor = __half;
  using Rows = typename KvTile<E4m3, D>::Rows;

  static __device__ int query_column(int half) { return static_cast<int>(threadIdx.x) % 4 * 4 + half * 2; }
  static __device__ uint32_t query(uint32_t pair) {
    const T(&two)[2] = reinterpret_cast<const T(&)[2]>(pair);
    return pack<__half>(widen(two[0]), widen(two[1]));
  }

  static __device__ void add_scores(float (&low)[4], float (&high)[4], const uint32_t (&q)[D / 16][4], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {
      uint32_t keys[4];
      load_matrices(keys, Rows::advance(first, rows, k * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t of_low[2], of_high[2];
        widen(keys[i], of_low);
        widen(keys[2 + i], of_high);
        multiply_add<__half>(low, q[k * 2 + i], of_low[0], of_low[1]);
        multiply_add<__half>(high, q[k * 2 + i], of_high[0], of_high[1]);
      }
    }
  }

  static __device__ void add_values(float (&o)[D / 8][4], const uint32_t (&weights)[4], uint32_t first, int rows) {
#pragma unroll
    for (int n = 0; n < D / 32; ++n) {
      uint32_t values[4];
      load_matrices_transposed(values, Rows::advance(first, rows, n * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t upper[2], lower[2];
        widen(__byte_perm(values[i * 2], 0, 0x3120), upper);
        widen(__byte_perm(values[i * 2 + 1], 0, 0x3120), lower);
        multiply_add<__half>(o[n * 4 + i * 2], weights, upper[0], lower[0]);
        multiply_add<__half>(o[n * 4 + i * 2 + 1], weights, upper[1], lower[1]);
      }
    }
  }

  static __device__ void put(float* row, const float (&o)[D / 8][4], int half) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      *reinterpret_cast<float4*>(row + n * 8 + threadIdx.x % 4 * 4) = {o[n][half * 2], o[n + 1][half * 2],
                                                                       o[n][half * 2 + 1], o[n + 1][half * 2 + 1]};
    }
  }
};

}  // namespace tercet::cuda
