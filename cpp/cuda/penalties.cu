// Penalties of rows of logits, by the rules of tercet/penalties.h.
//
// `penalize`: a few thread blocks a row, a thread per listed token; where a row has a mask, then a thread per four
// logits. The two may meet at a logit in any order: a listed token that the mask bans is written as banned, too.
// `count_drawn`: a thread block a row, whose threads look for the token in the row's list.
#include "kernel.cuh"
#include "penalties.h"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerRow = 8;

constexpr float kBanned = -__builtin_huge_valf();

__device__ float penalized(float x, const PenaltyToken& token, const PenaltyRow& row) {
  if ((token.kind & kEnds) != 0 && row.min_tokens_left > 0) return kBanned;
  x = __fadd_rn(x, token.bias);
  if (token.num_drawn > 0 || (token.kind & kInPrompt) != 0) {
    x = x > 0.0f ? __fdiv_rn(x, row.repetition) : __fmul_rn(x, row.repetition);
  }
  if (token.num_drawn > 0) {
    x = __fsub_rn(x, __fmul_rn(row.frequency, static_cast<float>(token.num_drawn)));
    x = __fsub_rn(x, row.presence);
  }
  return x;
}

__global__ void __launch_bounds__(kThreads)
    penalize_kernel(float* logits, int vocab_size, bool aligned, const PenaltyRow* rows, const PenaltyToken* tokens,
                    const std::uint32_t* masks) {
  const PenaltyRow row = rows[blockIdx.y];
  logits += static_cast<std::int64_t>(blockIdx.y) * vocab_size;
  const int thread = blockIdx.x * kThreads + threadIdx.x, num_threads = kBlocksPerRow * kThreads;
  const bool masked = row.mask >= 0;
  const std::uint32_t* mask = masks + (masked ? static_cast<std::int64_t>(row.mask) * ((vocab_size + 31) / 32) : 0);

  for (int i = thread; i < row.num_tokens; i += num_threads) {
    const PenaltyToken token = tokens[row.first_token + i];
    const bool allowed = !masked || (mask[token.token_id / 32] >> (token.token_id % 32) & 1) != 0;
    float& x = logits[token.token_id];
    x = allowed ? penalized(x, token, row) : kBanned;
  }
  if (!masked) return;
  for (int first = 4 * thread; first < vocab_size; first += 4 * num_threads) {
    const unsigned allowed = mask[first / 32] >> (first % 32) & 0xfu;
    if (aligned && allowed == 0) {
      *reinterpret_cast<float4*>(logits + first) = make_float4(kBanned, kBanned, kBanned, kBanned);
      continue;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j < vocab_size && (allowed >> j & 1) == 0) logits[first + j] = kBanned;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    count_drawn_kernel(const std::int64_t* token_ids, PenaltyRow* rows, PenaltyToken* tokens) {
  const std::int64_t token_id = token_ids[blockIdx.x];
  const PenaltyRow row = rows[blockIdx.x];
  if (token_id < 0) return;
  if (threadIdx.x == 0 && row.min_tokens_left > 0) rows[blockIdx.x].min_tokens_left = row.min_tokens_left - 1;
  if (!row.counts()) return;
  tokens += row.first_token;
  bool found = false;
  for (int i = threadIdx.x; i < row.num_tokens; i += kThreads) {
    if (tokens[i].token_id == token_id) {
      ++tokens[i].num_drawn;
      found = true;
    }
  }
  found = __syncthreads_or(found) != 0;
  if (threadIdx.x == 0 && !found && row.num_tokens < row.max_tokens) {
    tokens[row.num_tokens] = {static_cast<std::int32_t>(token_id), 1, 0.0f, 0};
    rows[blockIdx.x].num_tokens = row.num_tokens + 1;
  }
}

}  // namespace

void penalize(float* logits, int num_rows, int vocab_size, const PenaltyRow* rows, const PenaltyToken* tokens,
              const std::uint32_t* masks, Stream stream) {
  if (num_rows == 0) return;
  const bool aligned = vocab_size % 4 == 0 && is_aligned(logits);
  const dim3 blocks(kBlocksPerRow, static_cast<unsigned>(num_rows));
  penalize_kernel<<<blocks, kThreads, 0, stream>>>(logits, vocab_size, aligned, rows, tokens, masks);
  check_launch("penalize");
}

void count_drawn(const std::int64_t* token_ids, int num_rows, PenaltyRow* rows, PenaltyToken* tokens, Stream stream) {
  if (num_rows == 0) return;
  count_drawn_kernel<<<static_cast<unsigned>(num_rows), kThreads, 0, stream>>>(token_ids, rows, tokens);
  check_launch("count_drawn");
}

}  // namespace tercet::cuda
