// Logprobs of rows of logits, by the rules of tercet/logprobs.h.
//
// A team of thread blocks per row, as in sampler.cu. One pass finds the peak, and with it the largest logit of each
// warp: at least n tokens reach the nth of these, so that none below it is among the n likeliest. A second pass sums
// the mass and collects what reaches it, some tens of tokens, in the first block, which puts them in order. Only where
// very many logits are equal are they too many for that: then the first block finds their nth by the digits of the
// rank.
#include "logprobs.h"
#include "sampler.h"
#include "sampler_filter.cuh"
#include "sampler_launch.cuh"

namespace tercet::cuda {
namespace {

// Of the first block of a team.
struct Found {
  unsigned long long masses[kMaxTeam];
  Candidate top[kMaxTopLogprobs];
  int num_top;
};

// The nth largest, from 1, of one value a lane; the same for all lanes.
__device__ float nth_largest(float value, int n) {
  const int lane = threadIdx.x % kWarp;
  int num_before = 0;
  for (int other = 0; other < kWarp; ++other) {
    const float its = __shfl_sync(kFullWarp, value, other);
    num_before += its > value || (its == value && other < lane) ? 1 : 0;
  }
  return __shfl_sync(kFullWarp, value, __ffs(static_cast<int>(__ballot_sync(kFullWarp, num_before == n - 1))) - 1);
}

// How many of `tokens` come before `it`.
__device__ int place_of(const Candidate& it, const Candidate* tokens, int count) {
  int num_before = 0;
  for (int i = 0; i < count; ++i) {
    const Candidate other = tokens[i];
    num_before += other.z > it.z || (other.z == it.z && other.index < it.index) ? 1 : 0;
  }
  return num_before;
}

template <int kBlocks>
__global__ void __launch_bounds__(kSamplerThreads, 1)
    logprobs_kernel(int max_candidates, const float* logits, int vocab_size, bool aligned,
                    const std::int64_t* chosen_ids, const std::int32_t* num_top, int width, float* chosen,
                    std::int64_t* top_ids, float* top_logprobs) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  __shared__ Found found;
  const int b = blockIdx.x / kBlocks, rank = Team<kBlocks>::rank();
  logits += static_cast<std::int64_t>(b) * vocab_size;
  top_ids += static_cast<std::int64_t>(b) * width;
  top_logprobs += static_cast<std::int64_t>(b) * width;
  if (rank == 0 && threadIdx.x < width) {
    top_ids[threadIdx.x] = -1;
    top_logprobs[threadIdx.x] = __int_as_float(0x7fffffff);
  }
  if (rank == 0 && threadIdx.x == 0) chosen[b] = __int_as_float(0x7fffffff);
  if (num_top[b] < 0) return;
  const int wanted = min(num_top[b], vocab_size);

  Tokens tokens{logits, vocab_size, aligned, rank, kBlocks, max_candidates, &shared};
  if (threadIdx.x == 0) shared.num_candidates = found.num_top = 0;
  Team<kBlocks>::sync();  // before others write here
  const Peak peak = find_peak<kBlocks>(tokens);
  if (peak.index < 0) return;
  tokens.peak = peak.value;

  const float least =
      wanted > 0 ? tokens.z_of(nth_largest(shared.of_warps[threadIdx.x % kWarp].value, wanted)) : kInfinity;
  Shared* first = Team<kBlocks>::at(&shared, 0);
  unsigned long long mass = 0;
  tokens.each([&](float z, int index) {
    mass += Mass::of(z);
    if (z < least || index >= vocab_size) return;
    const int at = atomicAdd(&first->num_candidates, 1);
    if (at < max_candidates) first->candidates[at] = {z, index};
  });
  mass = shared.sums.total_of(mass);
  if (threadIdx.x == 0) Team<kBlocks>::at(&found, 0)->masses[rank] = mass;
  Team<kBlocks>::sync();
  if (rank != 0) return;

  unsigned long long total = 0;
  for (int block = 0; block < kBlocks; ++block) total += found.masses[block];
  const double log_total = log(static_cast<double>(total) * 0x1p-40);
  const auto logprob = [&](float z) { return static_cast<float>(static_cast<double>(z) - log_total); };
  if (threadIdx.x == 0 && chosen_ids[b] >= 0) chosen[b] = logprob(tokens.z_of(logits[chosen_ids[b]]));

  const Candidate* candidates = shared.candidates;
  int count = shared.num_candidates;
  if (count > kSamplerThreads) {
    tokens.num_blocks = 1;
    tokens.collected = count <= max_candidates;
    __syncthreads();
    if (threadIdx.x == 0 && !tokens.collected) shared.num_candidates = 0;
    filter<Count, 1>(tokens, [&](unsigned long long) { return static_cast<unsigned long long>(wanted); });
    tokens.each([&](float z, int index) { found.top[atomicAdd(&found.num_top, 1)] = {z, index}; });
    __syncthreads();
    candidates = found.top;
    count = found.num_top;
  }
  if (threadIdx.x >= count) return;
  const Candidate it = candidates[threadIdx.x];
  const int place = place_of(it, candidates, count);
  if (place >= wanted) return;
  top_ids[place] = it.index;
  top_logprobs[place] = logprob(it.z);
}

}  // namespace

void logprobs(const float* logits, int num_rows, int vocab_size, const std::int64_t* chosen_ids,
              const std::int32_t* num_top, int width, float* chosen, std::int64_t* top_ids, float* top_logprobs,
              Stream stream) {
  if (vocab_size < 1 || vocab_size > kMaxVocabulary) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) + " tokens cannot be measured");
  }
  if (width < 0 || width > kMaxTopLogprobs) {
    throw std::invalid_argument(std::to_string(width) + " top logprobs cannot be found");
  }
  if (num_rows == 0) return;
  const bool aligned = vocab_size % 4 == 0 && is_aligned(logits);
  with_team(num_rows, "logprobs", [&](auto blocks) {
    launch_team<blocks>(logprobs_kernel<blocks>, num_rows, stream, "logprobs", logits, vocab_size, aligned, chosen_ids,
                        num_top, width, chosen, top_ids, top_logprobs);
  });
}

}  // namespace tercet::cuda
