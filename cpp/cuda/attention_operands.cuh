// How tiles of K and V, as the cache stores them, become operands of products.
//
// A tile's 16 tokens, or 16 of its columns, are the rows of a product and query heads its columns, eight at a time:
// groups of a KV head are small, and padding them to 16 would double the work.
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

  // A lane's address in the first 16 rows, from which all its loads of matrices lead on.
  static __device__ uint32_t first_keys(uint32_t tile) {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    return tile + Rows::offset(matrix % 2 * 8 + lane % 8, matrix / 2);
  }
  static __device__ uint32_t first_values(uint32_t tile) {
    const int lane = threadIdx.x % kWarp, matrix = lane / 8;
    return tile + Rows::offset(matrix / 2 * 8 + lane % 8, matrix % 2);
  }
};

// T: of q and the result, S: of the cache; N tiles of eight heads.
template <typename T, typename S, int D>
struct Operands;

// A cache of the type that is multiplied: the hardware's own order.
template <typename T, int D>
struct Operands<T, T, D> {
  using Factor = T;
  using Rows = typename KvTile<T, D>::Rows;

  // Of 16 elements of q along the depth a lane has two pairs; where pair `half` begins.
  static __device__ int query_column(int half) { return static_cast<int>(threadIdx.x) % 4 * 2 + half * 8; }
  static __device__ uint32_t query(uint32_t pair) { return pair; }

  // scores [16 tokens from `rows` on, heads] += K q^T
  template <int N>
  static __device__ void add_scores(float (&scores)[N][4], const uint32_t (&q)[D / 16][N][2], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t keys[4];
      load_matrices(keys, Rows::advance(first, rows, k * 2));
#pragma unroll
      for (int n = 0; n < N; ++n) multiply_add<T>(scores[n], keys, q[k][n][0], q[k][n][1]);
    }
  }

  // o [D, heads] += V^T weights, of the same tokens
  template <int N>
  static __device__ void add_values(float (&o)[D / 16][N][4], const uint32_t (&weights)[N][2], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      uint32_t values[4];
      load_matrices_transposed(values, Rows::advance(first, rows, m * 2));
#pragma unroll
      for (int n = 0; n < N; ++n) multiply_add<T>(o[m][n], values, weights[n][0], weights[n][1]);
    }
  }

  // What a lane has of a head's 16 elements of o from `row` on.
  static __device__ void put(float* row, float upper, float lower) {
    const int at = threadIdx.x % kWarp / 4;
    row[at] = upper;
    row[at + 8] = lower;
  }
};

// Bytes in float16 products. Matrices of bytes are loaded as if two were one element, so that a lane gets four
// neighbours: of K along the depth, where q takes the same order; of V two columns of each of two tokens, which change
// places first, so that the upper rows of a product are the even ones of 16 columns and the lower rows the odd ones.
template <typename T, int D>
struct Operands<T, E4m3, D> {
  using Factor = __half;
  using Rows = typename KvTile<E4m3, D>::Rows;

  static __device__ int query_column(int half) { return static_cast<int>(threadIdx.x) % 4 * 4 + half * 2; }
  static __device__ uint32_t query(uint32_t pair) {
    const T(&two)[2] = reinterpret_cast<const T(&)[2]>(pair);
    return pack<__half>(widen(two[0]), widen(two[1]));
  }

  template <int N>
  static __device__ void add_scores(float (&scores)[N][4], const uint32_t (&q)[D / 16][N][2], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int k = 0; k < D / 32; ++k) {
      uint32_t bytes[4];
      load_matrices(bytes, Rows::advance(first, rows, k * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t upper[2], lower[2];
        widen(bytes[i * 2], upper);
        widen(bytes[i * 2 + 1], lower);
        const uint32_t keys[4] = {upper[0], lower[0], upper[1], lower[1]};
#pragma unroll
        for (int n = 0; n < N; ++n) multiply_add<__half>(scores[n], keys, q[k * 2 + i][n][0], q[k * 2 + i][n][1]);
      }
    }
  }

  template <int N>
  static __device__ void add_values(float (&o)[D / 16][N][4], const uint32_t (&weights)[N][2], uint32_t first,
                                    int rows) {
#pragma unroll
    for (int m = 0; m < D / 32; ++m) {
      uint32_t bytes[4];
      load_matrices_transposed(bytes, Rows::advance(first, rows, m * 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t low[2], high[2];  // tokens
        widen(__byte_perm(bytes[i], 0, 0x3120), low);
        widen(__byte_perm(bytes[i + 2], 0, 0x3120), high);
        const uint32_t values[4] = {low[0], low[1], high[0], high[1]};
#pragma unroll
        for (int n = 0; n < N; ++n) multiply_add<__half>(o[m * 2 + i][n], values, weights[n][0], weights[n][1]);
      }
    }
  }

  static __device__ void put(float* row, float upper, float lower) {
    *reinterpret_cast<float2*>(row + threadIdx.x % kWarp / 4 * 2) = {upper, lower};
  }
};

}  // namespace tercet::cuda
