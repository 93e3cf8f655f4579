// logits [B, V] -> token ids [B], by the rules of tercet/sampler.h.
//
// A team of thread blocks per row: where the GPU has clusters, up to 8 for batches too small to fill it, else one.
// Nothing is sorted: one pass finds the peak, and greedy rows are done; without a filter a second one draws. A filter
// (top-k, top-p) takes a pass for sums over 2048 ranges of z, which say up to which range its cut may lie, and one that
// collects these few candidates in the shared memory of the team's first block, which does the rest alone: the cut
// within its range by the digits of the rank, the next filter, the draw. Should they not fit there, it reads the row
// again instead. Counts and masses are integers, so their order does not matter and a row's token depends on that row
// alone.
#include <climits>

#include "cluster.cuh"
#include "kernel.cuh"
#include "sampler.h"
#include "sampler_tokens.cuh"

namespace tercet::cuda {
namespace {

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

template <int kBlocks>
__global__ void __launch_bounds__(kSamplerThreads, 1)
    sample_kernel(const float* logits, int vocab_size, bool aligned, int max_candidates, const SamplingParams* params,
                  std::int64_t* token_ids) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int b = blockIdx.x / kBlocks;
  const SamplingParams row = params[b];
  Tokens tokens{logits + static_cast<std::int64_t>(b) * vocab_size,
                vocab_size,
                aligned,
                Team<kBlocks>::rank(),
                kBlocks,
                max_candidates,
                &shared};
  if (threadIdx.x == 0) shared.num_candidates = 0;
  if constexpr (kBlocks > 1) Team<kBlocks>::sync();  // before others write here
  const Peak peak = find_peak<kBlocks>(tokens);
  if (peak.index < 0 || row.temperature == 0.0f || row.top_k == 1) {
    if (tokens.rank == 0 && threadIdx.x == 0) token_ids[b] = peak.index;
    return;
  }
  tokens.peak = peak.value;
  tokens.temperature = row.temperature;
  if (row.min_p > 0.0f) tokens.least = static_cast<float>(log(static_cast<double>(row.min_p)));
  if (row.top_k > 0 && row.top_k < vocab_size) {
    const auto target_of = [&](unsigned long long) { return static_cast<unsigned long long>(row.top_k); };
    if (!filter<Count, kBlocks>(tokens, target_of)) return;
  }
  if (row.top_p < 1.0f) {
    const auto target_of = [&](unsigned long long total) {
      const double wanted = ceil(static_cast<double>(row.top_p) * static_cast<double>(total));
      return wanted < 1.0 ? 1ull : static_cast<unsigned long long>(wanted);
    };
    if (!filter<Mass, kBlocks>(tokens, target_of)) return;
  }

  Draw draw(row.seed, row.position, shared.draw);
  if (tokens.collected) {
    tokens.each([&](float z, int index) { draw.consider(z, index); });
  } else {
    const auto kept = [&](float4 x, int first) {
      Four z{{tokens.z_of(x.x), tokens.z_of(x.y), tokens.z_of(x.z), tokens.z_of(x.w)}};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (z.at[j] < tokens.least || !tokens.cut.keeps(rank_of(z.at[j]), first + j)) z.at[j] = -kInfinity;
      }
      return z;
    };
    // What the first of all threads are sure to reach rules out nearly all the rest.
    const int group = tokens.rank * kSamplerThreads + threadIdx.x;
    if (4 * group < vocab_size) draw.foresee(kept(tokens.group_at(group), 4 * group), 4 * group);
    __syncthreads();
    tokens.over_row([&](float4 x, int first) { draw.consider(kept(x, first), first); });
  }
  Draw::Best best = draw.winner();
  if constexpr (kBlocks > 1) {
    if (tokens.num_blocks > 1) {
      if (threadIdx.x == 0) Team<kBlocks>::at(&shared, 0)->draw.of_blocks[tokens.rank] = best;
      Team<kBlocks>::sync();
      for (int rank = 0; tokens.rank == 0 && rank < kBlocks; ++rank) best.keep_better(shared.draw.of_blocks[rank]);
    }
  }
  if (tokens.rank == 0 && threadIdx.x == 0) token_ids[b] = best.index;
}

template <int kBlocks>
void launch(const float* logits, int num_rows, int vocab_size, int max_shared_bytes, const SamplingParams* params,
            std::int64_t* token_ids, Stream stream) {
  check(cudaFuncSetAttribute(sample_kernel<kBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes),
        "sample");
  const int max_candidates =
      (max_shared_bytes - static_cast<int>(sizeof(Shared))) / static_cast<int>(sizeof(Candidate));
  const bool aligned = vocab_size % 4 == 0 && is_aligned(logits);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_rows) * kBlocks);
  config.blockDim = dim3(kSamplerThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(max_shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = kBlocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, sample_kernel<kBlocks>, logits, vocab_size, aligned, max_candidates, params,
                           token_ids),
        "sample");
}

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "sample");
  return value;
}

}  // namespace

void sample(const float* logits, int num_rows, int vocab_size, const SamplingParams* params, std::int64_t* token_ids,
            Stream stream) {
  if (vocab_size < 1 || vocab_size > kMaxVocabulary) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) + " tokens cannot be sampled");
  }
  if (num_rows == 0) return;
  int device = 0;
  check(cudaGetDevice(&device), "sample");
  const int max_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const bool has_clusters = attribute(cudaDevAttrClusterLaunch, device) != 0;
  // Clusters leave some multiprocessors of their groups unused, and a second wave would cost more than they save.
  const int num_blocks = has_clusters ? attribute(cudaDevAttrMultiProcessorCount, device) * 7 / 8 : 0;
  const int blocks_per_row = num_blocks / num_rows;
  const auto chosen = blocks_per_row >= 8   ? launch<8>
                      : blocks_per_row >= 4 ? launch<4>
                      : blocks_per_row >= 2 ? launch<2>
                                            : launch<1>;
  chosen(logits, num_rows, vocab_size, max_shared_bytes, params, token_ids, stream);
}

}  // namespace tercet::cuda
