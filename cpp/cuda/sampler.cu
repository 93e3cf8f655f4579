// logits [B, V] -> token ids [B], by the rules of tercet/sampler.h.
//
// A thread block per row. Nothing is sorted: one pass finds the peak, and greedy rows are done; without a filter a
// second one draws. A filter (top-k, top-p) takes a pass for the sums of the first digit of the rank, which say up to
// which value its cut may lie, and one that collects these few candidates in shared memory, where the rest happens: the
// cut by two more digits, the next filter, the draw. Should they not fit there, the same steps read the row again.
// Counts and masses are integers, so their order does not matter and a row's token depends on that row alone.
#include <climits>

#include "kernel.cuh"
#include "sampler.h"
#include "sampler_draw.cuh"
#include "sampler_sums.cuh"

namespace tercet::cuda {
namespace {

constexpr int kCandidates = 8192;
constexpr float kInfinity = __builtin_huge_valf();

// A place in rank order; what lies beyond it is dropped.
struct Cut {
  unsigned rank;
  int index;

  __device__ bool keeps(unsigned rank_of_it, int index_of_it) const {
    return rank_of_it < rank || (rank_of_it == rank && index_of_it <= index);
  }
};

constexpr Cut kNoCut{UINT_MAX, INT_MAX};

struct Shared {
  Sums sums;
  Draw::Shared draw;
  float of_warps[kWarp];
  int indices[kWarp];
  int num_candidates;
  float z[kCandidates];
  int ids[kCandidates];
};

// The tokens a row still has: its candidates, or where they are too many for that, those of the row up to `cut`.
struct Tokens {
  const float* logits;
  int vocab_size;
  bool aligned;  // rows start at 16 bytes
  float peak, temperature, least;
  bool collected;
  Shared* shared;

  __device__ float z_of(float logit) const {
    const float below = __fsub_rn(logit, peak);
    return temperature == 1.0f ? below : __fdiv_rn(below, temperature);
  }

  // f(four logits, index of the first): -inf stands where the row has ended.
  template <typename F>
  __device__ void over_row(F&& f) const {
    constexpr int kUnroll = 2;
    const int num_groups = (vocab_size + 3) / 4;
    for (int first = threadIdx.x; first < num_groups; first += kUnroll * kSamplerThreads) {
      float4 values[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int group = first + j * kSamplerThreads;
        if (group < num_groups) values[j] = group_at(group);
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int group = first + j * kSamplerThreads;
        if (group < num_groups) f(values[j], 4 * group);
      }
    }
  }

  __device__ float4 group_at(int group) const {
    if (aligned) return reinterpret_cast<const float4*>(logits)[group];
    const int index = 4 * group;
    return make_float4(logits[index], index + 1 < vocab_size ? logits[index + 1] : -kInfinity,
                       index + 2 < vocab_size ? logits[index + 2] : -kInfinity,
                       index + 3 < vocab_size ? logits[index + 3] : -kInfinity);
  }

  // f(z, index) for all that min-p keeps.
  template <typename F>
  __device__ void each_of_row(F&& f) const {
    over_row([&](float4 x, int index) {
      const float z[4] = {z_of(x.x), z_of(x.y), z_of(x.z), z_of(x.w)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (z[j] >= least) f(z[j], index + j);
      }
    });
  }

  template <typename F>
  __device__ void each(F&& f) const {
    if (collected) {
      for (int i = threadIdx.x; i < shared->num_candidates; i += kSamplerThreads) f(shared->z[i], shared->ids[i]);
    } else {
      each_of_row(f);
    }
  }
};

struct Peak {
  float value;
  int index;
};

// The first of the largest logits; index -1 if the row has a NaN or +inf, or nothing but -inf.
__device__ Peak find_peak(const Tokens& tokens) {
  float best = -kInfinity;
  int index = INT_MAX;
  bool bad = false;
  tokens.over_row([&](float4 x, int first) {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bad |= !(values[j] < kInfinity);
      if (values[j] > best) {
        best = values[j];
        index = first + j;
      }
    }
  });
  const auto keep_better = [&](float other, int other_index) {
    if (other > best || (other == best && other_index < index)) {
      best = other;
      index = other_index;
    }
  };
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    keep_better(__shfl_xor_sync(kFullWarp, best, lanes), __shfl_xor_sync(kFullWarp, index, lanes));
  }
  const int lane = threadIdx.x % kWarp;
  Shared& shared = *tokens.shared;
  if (lane == 0) {
    shared.of_warps[threadIdx.x / kWarp] = best;
    shared.indices[threadIdx.x / kWarp] = index;
  }
  bad = __syncthreads_or(bad) != 0;
  best = shared.of_warps[lane];
  index = shared.indices[lane];
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    keep_better(__shfl_xor_sync(kFullWarp, best, lanes), __shfl_xor_sync(kFullWarp, index, lanes));
  }
  return {best, bad || best == -kInfinity ? -1 : index};
}

// The place where the running sum over `tokens` in rank order first reaches `target`, which must lie in 1 .. sum.
template <typename Measure>
__device__ Cut select(const Tokens& tokens, const Cut& cut, unsigned long long target) {
  constexpr int kDigits = 3;
  constexpr int kShift[kDigits] = {20, 10, 0};
  constexpr int kBits[kDigits] = {11, 10, 10};
  Sums& sums = tokens.shared->sums;
  unsigned prefix = 0;
  unsigned long long in_bin = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    const int shift = digit == 0 ? kShift[0] : digit == 1 ? kShift[1] : kShift[2];
    const int bits = digit == 0 ? kBits[0] : kBits[1];
    sums.clear();
    tokens.each([&](float z, int index) {
      const unsigned rank = rank_of(z);
      if (rank >> (shift + bits) == prefix && cut.keeps(rank, index)) {
        sums.add((rank >> shift) & ((1u << bits) - 1), Measure::of(z));
      }
    });
    const Sums::Place place = sums.find(target);
    target -= place.before;
    in_bin = place.sum;
    prefix = prefix << bits | place.bin;
  }
  // Equals, of which the first few are kept: by two digits of their ids.
  const unsigned long long weight = Measure::of(-__uint_as_float(prefix));
  unsigned long long wanted = (target + weight - 1) / weight;
  if (wanted * weight >= in_bin) return {prefix, INT_MAX};
  constexpr int kIdBits = 11;
  int high = 0;
  for (int digit = 0; digit < 2; ++digit) {
    sums.clear();
    tokens.each([&](float z, int index) {
      if (rank_of(z) != prefix || !cut.keeps(prefix, index)) return;
      if (digit == 0) {
        sums.add(index >> kIdBits, 1);
      } else if (index >> kIdBits == high) {
        sums.add(index & ((1 << kIdBits) - 1), 1);
      }
    });
    const Sums::Place place = sums.find(wanted);
    wanted -= place.before;
    high = high << kIdBits | static_cast<int>(place.bin);
  }
  return {prefix, high};
}

// How much of `total` top-p keeps.
__device__ unsigned long long mass_target(float top_p, unsigned long long total) {
  const double wanted = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const auto target = static_cast<unsigned long long>(wanted);
  return target < 1 ? 1 : target > total ? total : target;
}

// Sums the first digit over the row; if `target_of(total)` lies within, collects what may be before the cut there.
// Returns the target, or 0 if all of the row is kept.
template <typename Measure, typename F>
__device__ unsigned long long collect(Tokens& tokens, F&& target_of) {
  Shared& shared = *tokens.shared;
  shared.sums.clear();
  if (threadIdx.x == 0) shared.num_candidates = 0;
  tokens.each_of_row([&](float z, int) { shared.sums.add(rank_of(z) >> 20, Measure::of(z)); });
  const unsigned long long total = shared.sums.total();
  const unsigned long long target = target_of(total);
  if (target > total) return 0;
  const unsigned last_bin = shared.sums.find(target).bin;
  tokens.each_of_row([&](float z, int index) {
    if (rank_of(z) >> 20 > last_bin) return;
    const int at = atomicAdd(&shared.num_candidates, 1);
    if (at >= kCandidates) return;
    shared.z[at] = z;
    shared.ids[at] = index;
  });
  __syncthreads();
  tokens.collected = shared.num_candidates <= kCandidates;
  return target;
}

__global__ void __launch_bounds__(kSamplerThreads, 1)
    sample_kernel(const float* logits, int vocab_size, bool aligned, const SamplingParams* params,
                  std::int64_t* token_ids) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const SamplingParams row = params[blockIdx.x];
  Tokens tokens{logits + static_cast<std::int64_t>(blockIdx.x) * vocab_size,
                vocab_size,
                aligned,
                0.0f,
                row.temperature,
                -kInfinity,
                false,
                &shared};
  const Peak peak = find_peak(tokens);
  if (peak.index < 0 || row.temperature == 0.0f || row.top_k == 1) {
    if (threadIdx.x == 0) token_ids[blockIdx.x] = peak.index;
    return;
  }
  tokens.peak = peak.value;
  if (row.min_p > 0.0f) tokens.least = static_cast<float>(log(static_cast<double>(row.min_p)));
  const bool by_count = row.top_k > 0 && row.top_k < vocab_size, by_mass = row.top_p < 1.0f;
  Cut cut = kNoCut;
  if (by_count) {
    const auto target = collect<Count>(tokens, [&](unsigned long long) { return row.top_k; });
    if (target != 0) cut = select<Count>(tokens, cut, target);
  }
  if (by_mass && tokens.collected) {
    unsigned long long mass = 0;
    tokens.each([&](float z, int index) {
      if (cut.keeps(rank_of(z), index)) mass += Mass::of(z);
    });
    cut = select<Mass>(tokens, cut, mass_target(row.top_p, shared.sums.total_of(mass)));
  } else if (by_mass && cut.rank == kNoCut.rank) {
    const auto target = collect<Mass>(tokens, [&](unsigned long long total) { return mass_target(row.top_p, total); });
    cut = select<Mass>(tokens, cut, target);
  } else if (by_mass) {
    unsigned long long mass = 0;
    tokens.each_of_row([&](float z, int index) {
      if (cut.keeps(rank_of(z), index)) mass += Mass::of(z);
    });
    cut = select<Mass>(tokens, cut, mass_target(row.top_p, shared.sums.total_of(mass)));
  }

  Draw draw(row.seed, row.position, shared.draw);
  if (tokens.collected) {
    tokens.each([&](float z, int index) {
      if (cut.keeps(rank_of(z), index)) draw.consider(z, index);
    });
  } else {
    tokens.over_row([&](float4 x, int first) {
      float z[4] = {tokens.z_of(x.x), tokens.z_of(x.y), tokens.z_of(x.z), tokens.z_of(x.w)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (z[j] < tokens.least || !cut.keeps(rank_of(z[j]), first + j)) z[j] = -kInfinity;
      }
      draw.consider_four(z, first);
    });
  }
  const int chosen = draw.winner();
  if (threadIdx.x == 0) token_ids[blockIdx.x] = chosen;
}

}  // namespace

void sample(const float* logits, int num_rows, int vocab_size, const SamplingParams* params, std::int64_t* token_ids,
            Stream stream) {
  if (vocab_size < 1 || vocab_size > kMaxVocabulary) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) + " tokens cannot be sampled");
  }
  if (num_rows == 0) return;
  const bool aligned = vocab_size % 4 == 0 && is_aligned(logits);
  constexpr int kBytes = sizeof(Shared);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "sample");
  sample_kernel<<<num_rows, kSamplerThreads, kBytes, stream>>>(logits, vocab_size, aligned, params, token_ids);
  check_launch("sample");
}

}  // namespace tercet::cuda
