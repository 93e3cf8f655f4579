// The likeliest tokens of a row: its peak, and the place in rank order where a running sum of counts or masses reaches
// a target.
#pragma once

#include <climits>

#include "cluster.cuh"
#include "sampler_sums.cuh"
#include "sampler_tokens.cuh"

namespace tercet::cuda {

// The first of the largest logits; index -1 if the row has a NaN or +inf, or nothing but -inf.
template <int kBlocks>
__device__ Peak find_peak(const Tokens& tokens) {
  Peak best{-kInfinity, INT_MAX};
  bool bad = false;
  tokens.over_row([&](float4 x, int first) {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bad |= !(values[j] < kInfinity);
      if (values[j] > best.value) best = {values[j], first + j};
    }
  });
  const auto reduce_warp = [&] {
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
      best.keep_better({__shfl_xor_sync(kFullWarp, best.value, lanes), __shfl_xor_sync(kFullWarp, best.index, lanes)});
    }
  };
  Shared& shared = *tokens.shared;
  reduce_warp();
  if (threadIdx.x % kWarp == 0) shared.of_warps[threadIdx.x / kWarp] = best;
  bad = __syncthreads_or(bad) != 0;
  best = shared.of_warps[threadIdx.x % kWarp];
  reduce_warp();
  if (bad) best = {kInfinity, -1};
  if constexpr (kBlocks > 1) {
    if (threadIdx.x < kBlocks) *Team<kBlocks>::at(&shared.of_blocks[tokens.rank], threadIdx.x) = best;
    Team<kBlocks>::sync();
    for (int rank = 0; rank < kBlocks; ++rank) best.keep_better(shared.of_blocks[rank]);
  }
  return {best.value, best.value == -kInfinity ? -1 : best.index};
}

// Sums `Measure` of the kept tokens by ranges of z; for all blocks that share the row.
template <typename Measure, int kBlocks>
__device__ void sum_ranges(const Tokens& tokens) {
  Sums& sums = tokens.shared->sums;
  sums.clear();
  unsigned long long in_last = 0;  // where most of a sharp distribution is
  tokens.each([&](float z, int) {
    const int range = range_of(z);
    if (range == Sums::kBins - 1) {
      in_last += Measure::of(z);
    } else {
      sums.add(range, Measure::of(z));
    }
  });
  in_last = sums.total_of(in_last);
  if (threadIdx.x == 0) sums.add(Sums::kBins - 1, in_last);
  if constexpr (kBlocks > 1) {
    if (tokens.num_blocks == 1) return;
    // Each block adds up a part of the bins and gives it to all.
    Team<kBlocks>::sync();
    constexpr int kPart = Sums::kBins / kBlocks;
    for (int i = threadIdx.x; i < kPart; i += kSamplerThreads) {
      const int bin = tokens.rank * kPart + i;
      unsigned long long sum = 0;
      for (int rank = 0; rank < kBlocks; ++rank) sum += Team<kBlocks>::at(&sums, rank)->at(bin);
      for (int rank = 0; rank < kBlocks; ++rank) Team<kBlocks>::at(&sums, rank)->put(bin, sum);
    }
    Team<kBlocks>::sync();
  }
}

// Collects the kept tokens up to `last_range` in the first block, if it has room for them.
template <int kBlocks>
__device__ void collect(Tokens& tokens, int last_range) {
  Shared& shared = *tokens.shared;
  Shared* first = Team<kBlocks>::at(&shared, 0);
  tokens.each([&](float z, int index) {
    if (range_of(z) > last_range) return;
    const int at = atomicAdd(&first->num_candidates, 1);
    if (at < tokens.max_candidates) first->candidates[at] = {z, index};
  });
  Team<kBlocks>::sync();
  tokens.num_blocks = 1;
  if (tokens.rank != 0) return;
  tokens.collected = shared.num_candidates <= tokens.max_candidates;
  __syncthreads();
  if (threadIdx.x == 0 && !tokens.collected) shared.num_candidates = 0;
}

// The place in range `range` where the running sum in rank order first reaches `target`, which must lie in 1 .. sum.
template <typename Measure>
__device__ Cut select(const Tokens& tokens, int range, unsigned long long target) {
  Sums& sums = tokens.shared->sums;
  unsigned prefix = 0;
  unsigned long long in_bin = 0;
  for (int digit = 0; digit < 3; ++digit) {  // of 11, 10 and 10 bits
    const int shift = 20 - 10 * digit, bits = digit == 0 ? 11 : 10;
    sums.clear();
    tokens.each([&](float z, int) {
      const unsigned rank = rank_of(z);
      if (rank >> (shift + bits) == prefix && range_of(z) == range) {
        sums.add((rank >> shift) & ((1u << bits) - 1), Measure::of(z));
      }
    });
    const Sums::Place place = sums.find(target);
    target -= place.before;
    in_bin = place.sum;
    prefix = prefix << bits | static_cast<unsigned>(place.bin);
  }
  // Equals, of which the first few are kept: by two digits of their ids.
  const unsigned long long weight = Measure::of(-__uint_as_float(prefix));
  unsigned long long wanted = (target + weight - 1) / weight;
  if (wanted * weight >= in_bin) return {prefix, prefix == tokens.cut.rank ? tokens.cut.index : INT_MAX};
  constexpr int kIdBits = 11;
  int high = 0;
  for (int digit = 0; digit < 2; ++digit) {
    sums.clear();
    tokens.each([&](float z, int index) {
      if (rank_of(z) != prefix) return;
      if (digit == 0) {
        sums.add(index >> kIdBits, 1);
      } else if (index >> kIdBits == high) {
        sums.add(index & ((1 << kIdBits) - 1), 1);
      }
    });
    const Sums::Place place = sums.find(wanted);
    wanted -= place.before;
    high = high << kIdBits | place.bin;
  }
  return {prefix, high};
}

// Cuts where the running sum of `Measure` first reaches target_of(total). Returns whether this block goes on.
template <typename Measure, int kBlocks, typename F>
__device__ bool filter(Tokens& tokens, F&& target_of) {
  sum_ranges<Measure, kBlocks>(tokens);
  Sums& sums = tokens.shared->sums;
  const unsigned long long total = sums.total(), target = target_of(total);
  if (target >= total) return true;
  const Sums::Place place = sums.find(target);
  if (!tokens.collected) {
    if (tokens.num_blocks > 1) {
      collect<kBlocks>(tokens, place.bin);
    } else {
      collect<1>(tokens, place.bin);
    }
    if (tokens.rank != 0) return false;
  }
  tokens.cut = select<Measure>(tokens, place.bin, target - place.before);
  return true;
}

}  // namespace tercet::cuda
