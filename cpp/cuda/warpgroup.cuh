// Products by warpgroups (sm_90a): four warps multiply tiles of 64 rows with operands that lie in shared memory, behind
// their own back, and the barriers by which other warps bring these.
#pragma once

#include "mma.cuh"

namespace tercet::cuda {

// Rows of 128 bytes, 64 elements, whose eight pieces of 16 bytes change places by the row's number: as the hardware's
// 128-byte swizzle has it. Wider tiles are several such panels. Each starts on 1024 bytes.
constexpr int kPanelElements = 64;
constexpr int kPanelRowBytes = 128;

template <int Rows>
__device__ inline int panel_offset(int row, int piece) {
  return piece / 8 * (Rows * kPanelRowBytes) + row * kPanelRowBytes + ((piece % 8) ^ (row & 7)) * 16;
}

// A tile for the hardware. `panel_bytes` leads from panel to panel where these follow each other along the columns of
// the product (values), and is of no meaning where they do along its depth (queries, keys).
__device__ inline uint64_t tile_descriptor(uint32_t address, uint32_t panel_bytes) {
  const uint64_t eight_rows = 8 * kPanelRowBytes;
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(panel_bytes >> 4) << 16 |
         (eight_rows >> 4) << 32 | uint64_t{1} << 62;
}

// The descriptor of what lies `bytes` further on.
__device__ inline uint64_t advance(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

// Before products that read registers which other instructions wrote.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last kPending groups are done; `sum` belongs to those that are.
template <int kPending, int N>
__device__ inline void wait_products(float (&sum)[N][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sum[n][i])::"memory");
  }
}

// What other threads copied to shared memory, and is known to have arrived, may be read by products.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives when the thread's copies up to here have.
__device__ inline void arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the barrier's phase of this parity.
__device__ inline void wait_barrier(uint32_t barrier, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Among the threads of one warpgroup; id from 1 to 15.
__device__ inline void sync_warpgroup(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// sum [64, 128] = or, if `add`, += a [64, 16] b [128, 16]^T, both in shared memory. A warp has 16 rows, laid out as
// those of multiply_add are.
template <typename T>
__device__ void multiply_tiles(float (&sum)[16][4], uint64_t a, uint64_t b, bool add);

// sum [64, 8 N] += a [64, 16] b [16, 8 N], a in registers as multiply_add wants it.
template <typename T, int N>
__device__ void multiply_weights(float (&sum)[N][4], const uint32_t (&a)[4], uint64_t b);

// Registers of a sum as they are named in the instruction, and as they are handed to it.
#define TERCET_NAMES_32                                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TERCET_NAMES_64                                                                               \
  TERCET_NAMES_32                                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TERCET_SUM_4(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define TERCET_SUM_16(n) TERCET_SUM_4(n), TERCET_SUM_4(n + 1), TERCET_SUM_4(n + 2), TERCET_SUM_4(n + 3)
#define TERCET_SUM_32 TERCET_SUM_16(0), TERCET_SUM_16(4)
#define TERCET_SUM_64 TERCET_SUM_32, TERCET_SUM_16(8), TERCET_SUM_16(12)

#define TERCET_PRODUCTS(T, name)                                                                            \
  template <>                                                                                               \
  __device__ inline void multiply_tiles<T>(float (&sum)[16][4], uint64_t a, uint64_t b, bool add) {         \
    asm volatile(                                                                                           \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"                                                    \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {" TERCET_NAMES_64                   \
        "}, %64, %65, add, 1, 1, 0, 0;\n}"                                                                  \
        : TERCET_SUM_64                                                                                     \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                      \
  }                                                                                                         \
  template <>                                                                                               \
  __device__ inline void multiply_weights<T, 16>(float (&sum)[16][4], const uint32_t (&a)[4], uint64_t b) { \
    asm volatile(                                                                                           \
        "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                                                      \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." name "." name " {" TERCET_NAMES_64                   \
        "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"                                                    \
        : TERCET_SUM_64                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
  }                                                                                                         \
  template <>                                                                                               \
  __device__ inline void multiply_weights<T, 8>(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b) {   \
    asm volatile(                                                                                           \
        "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                                                      \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" TERCET_NAMES_32                    \
        "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"                                                    \
        : TERCET_SUM_32                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
  }

TERCET_PRODUCTS(__nv_bfloat16, "bf16")
TERCET_PRODUCTS(__half, "f16")

#undef TERCET_PRODUCTS
#undef TERCET_SUM_64
#undef TERCET_SUM_32
#undef TERCET_SUM_16
#undef TERCET_SUM_4
#undef TERCET_NAMES_64
#undef TERCET_NAMES_32

}  // namespace tercet::cuda
