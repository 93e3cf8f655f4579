// Sums of counts or masses by range or digit, in shared memory, and the place where a running sum reaches a target.
#pragma once

#include "kernel.cuh"

namespace tercet::cuda {

constexpr int kSamplerThreads = 1024;
constexpr unsigned kFullWarp = 0xffffffffu;

// Ascending where z <= 0 descends; -0 and 0 are equal.
__device__ inline unsigned rank_of(float z) { return __float_as_uint(z) & 0x7fffffffu; }

// Of 2048 ranges, in rank order. Even ones, so that a warp's tokens seldom meet in one.
__device__ inline int range_of(float z) { return min(static_cast<int>(z * -64.0f), 2 * kSamplerThreads - 1); }

// What a filter measures.
struct Count {
  __device__ static unsigned long long of(float) { return 1; }
};

// weight(z) of tercet/sampler.h. Each operation is rounded on its own, as there: no multiply-add.
struct Mass {
  __device__ static unsigned long long of(float z) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to a whole number
    const float x = z > -28.0f ? z : -28.0f;
    const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504f), kRound), kRound);
    const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375f)), __fmul_rn(n, -2.1219444e-4f));
    float exp_r = 1.0f / 5040;
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f / 720);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f / 120);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f / 24);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f / 6);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 0.5f);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f);
    exp_r = __fadd_rn(__fmul_rn(exp_r, r), 1.0f);
    const float power = __int_as_float((static_cast<int>(n) + 40 + 127) << 23);
    return static_cast<unsigned long long>(__float2ll_rz(__fmul_rn(exp_r, power)));
  }
};

struct Sums {
  static constexpr int kBins = 2 * kSamplerThreads;

  // Two words a sum: shared memory adds 32 bits at once, 64 only by trial.
  unsigned low[kBins];
  unsigned high[kBins];
  unsigned long long of_warps[kWarp];
  int found_bin;
  unsigned long long found_before, found_sum;

  struct Place {
    int bin;
    unsigned long long before, sum;  // of the bins before it, and its own
  };

  // All threads; nobody may still read or write the sums.
  __device__ void clear() {
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kSamplerThreads) low[i] = high[i] = 0;
    __syncthreads();
  }

  // Any thread, between `clear` and what reads the sums.
  __device__ void add(unsigned bin, unsigned long long value) {
    const auto bits = static_cast<unsigned>(value);
    auto upper = static_cast<unsigned>(value >> 32);
    if (bits != 0) {
      const unsigned before = atomicAdd(&low[bin], bits);
      upper += before + bits < before ? 1 : 0;
    }
    if (upper != 0) atomicAdd(&high[bin], upper);
  }

  // The sum over all threads, for all threads.
  __device__ unsigned long long total_of(unsigned long long value) {
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = of_warps[threadIdx.x % kWarp];
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFullWarp, value, lanes);
    return value;
  }

  __device__ unsigned long long at(int bin) const {
    return static_cast<unsigned long long>(high[bin]) << 32 | low[bin];
  }

  // One thread a bin.
  __device__ void put(int bin, unsigned long long sum) {
    low[bin] = static_cast<unsigned>(sum);
    high[bin] = static_cast<unsigned>(sum >> 32);
  }

  // The sum of all bins. All threads.
  __device__ unsigned long long total() {
    __syncthreads();
    return total_of(at(2 * threadIdx.x) + at(2 * threadIdx.x + 1));
  }

  // The bin in which the running sum first reaches `target`, which must lie in 1 .. total. All threads.
  __device__ Place find(unsigned long long target) {
    __syncthreads();
    const int bin = 2 * threadIdx.x, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const unsigned long long first = at(bin), both = first + at(bin + 1);
    unsigned long long through = both;  // of this thread's bins and those before them
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      const unsigned long long before = __shfl_up_sync(kFullWarp, through, lanes);
      if (lane >= lanes) through += before;
    }
    if (lane == kWarp - 1) of_warps[warp] = through;
    __syncthreads();
    unsigned long long of_lane = lane < warp ? of_warps[lane] : 0;
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) of_lane += __shfl_xor_sync(kFullWarp, of_lane, lanes);
    through += of_lane;
    const unsigned long long before = through - both;
    if (before < target && target <= through) {
      const bool second = before + first < target;
      found_bin = bin + (second ? 1 : 0);
      found_before = second ? before + first : before;
      found_sum = second ? both - first : first;
    }
    __syncthreads();
    return {found_bin, found_before, found_sum};
  }
};

}  // namespace tercet::cuda
