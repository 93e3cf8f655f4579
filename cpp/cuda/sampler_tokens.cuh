// The tokens a row of logits still has while it is sampled, and where they are: in its logits, or collected.
#pragma once

#include <climits>

#include "kernel.cuh"
#include "sampler_draw.cuh"
#include "sampler_sums.cuh"

namespace tercet::cuda {

constexpr float kInfinity = __builtin_huge_valf();

// A place in rank order; what lies beyond it is dropped.
struct Cut {
  unsigned rank;
  int index;

  __device__ bool keeps(unsigned rank_of_it, int index_of_it) const {
    return rank_of_it < rank || (rank_of_it == rank && index_of_it <= index);
  }
};

struct Peak {
  float value;
  int index;  // -1: the row is of no use

  __device__ void keep_better(const Peak& other) {
    if (other.value > value || (other.value == value && other.index < index)) *this = other;
  }
};

struct Candidate {
  float z;
  int index;
};

struct Shared {
  Sums sums;
  Draw::Shared draw;
  Peak of_warps[kWarp];
  Peak of_blocks[kMaxTeam];
  int num_candidates;
  Candidate candidates[];  // as many as there is room for
};

// The tokens a row still has: its candidates, or while these are not collected, those of the row up to `cut`.
struct Tokens {
  const float* logits;
  int vocab_size;
  bool aligned;          // rows start at 16 bytes
  int rank, num_blocks;  // this block's in its team, and those that share the row
  int max_candidates;
  Shared* shared;
  float peak = 0.0f, temperature = 1.0f, least = -kInfinity;
  Cut cut{UINT_MAX, INT_MAX};
  bool collected = false;

  __device__ float z_of(float logit) const {
    const float below = __fsub_rn(logit, peak);
    return temperature == 1.0f ? below : __fdiv_rn(below, temperature);
  }

  __device__ float4 group_at(int group) const {
    if (aligned) return reinterpret_cast<const float4*>(logits)[group];
    const int index = 4 * group;
    return make_float4(logits[index], index + 1 < vocab_size ? logits[index + 1] : -kInfinity,
                       index + 2 < vocab_size ? logits[index + 2] : -kInfinity,
                       index + 3 < vocab_size ? logits[index + 3] : -kInfinity);
  }

  // f(four logits, index of the first) for this block's share of the row: -inf stands where the row has ended.
  template <typename F>
  __device__ void over_row(F&& f) const {
    constexpr int kUnroll = 2;
    const int num_groups = (vocab_size + 3) / 4, step = num_blocks * kSamplerThreads;
    for (int first = rank * kSamplerThreads + threadIdx.x; first < num_groups; first += kUnroll * step) {
      float4 values[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (first + j * step < num_groups) values[j] = group_at(first + j * step);
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (first + j * step < num_groups) f(values[j], 4 * (first + j * step));
      }
    }
  }

  // f(z, index) for all that are kept.
  template <typename F>
  __device__ void each(F&& f) const {
    if (collected) {
      for (int i = threadIdx.x; i < shared->num_candidates; i += kSamplerThreads) {
        const Candidate it = shared->candidates[i];
        if (cut.keeps(rank_of(it.z), it.index)) f(it.z, it.index);
      }
      return;
    }
    over_row([&](float4 x, int index) {
      const float z[4] = {z_of(x.x), z_of(x.y), z_of(x.z), z_of(x.w)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (z[j] >= least && cut.keeps(rank_of(z[j]), index + j)) f(z[j], index + j);
      }
    });
  }
};

}  // namespace tercet::cuda
