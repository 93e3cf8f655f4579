// logits [B, V] -> token ids [B], by the rules of tercet/sampler.h.
//
// A team of thread blocks per row: where the GPU has clusters, up to 8 for batches too small to fill it, else one.
// Nothing is sorted: one pass finds the peak, and greedy rows are done; without a filter a second one draws. A filter
// (top-k, top-p) takes a pass for sums over 2048 ranges of z, which say up to which range its cut may lie, and one that
// collects these few candidates in the shared memory of the team's first block, which does the rest alone: the cut
// within its range by the digits of the rank, the next filter, the draw. Should they not fit there, it reads the row
// again instead. Counts and masses are integers, so their order does not matter and a row's token depends on that row
// alone.
#include "sampler.h"
#include "sampler_draw.cuh"
#include "sampler_filter.cuh"
#include "sampler_launch.cuh"

namespace tercet::cuda {
namespace {

template <int kBlocks>
__global__ void __launch_bounds__(kSamplerThreads, 1)
    sample_kernel(int max_candidates, const float* logits, int vocab_size, bool aligned, const SamplingParams* params,
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

}  // namespace

void sample(const float* logits, int num_rows, int vocab_size, const SamplingParams* params, std::int64_t* token_ids,
            Stream stream) {
  if (vocab_size < 1 || vocab_size > kMaxVocabulary) {
    throw std::invalid_argument("a vocabulary of " + std::to_string(vocab_size) + " tokens cannot be sampled");
  }
  if (num_rows == 0) return;
  const bool aligned = vocab_size % 4 == 0 && is_aligned(logits);
  with_team(num_rows, "sample", [&](auto blocks) {
    launch_team<blocks>(sample_kernel<blocks>, num_rows, stream, "sample", logits, vocab_size, aligned, params,
                        token_ids);
  });
}

}  // namespace tercet::cuda
