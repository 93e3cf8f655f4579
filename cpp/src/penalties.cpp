#include "tercet/penalties.h"

namespace tercet {
namespace {

constexpr float kBanned = -__builtin_huge_valf();

bool allowed(const std::uint32_t* mask, int token_id) { return (mask[token_id / 32] >> (token_id % 32) & 1) != 0; }

float penalized(float x, const PenaltyToken& token, const PenaltyRow& row) {
  if ((token.kind & kEnds) != 0 && row.min_tokens_left > 0) return kBanned;
  x += token.bias;
  if (token.num_drawn > 0 || (token.kind & kInPrompt) != 0) x = x > 0.0f ? x / row.repetition : x * row.repetition;
  if (token.num_drawn > 0) {
    x -= row.frequency * static_cast<float>(token.num_drawn);
    x -= row.presence;
  }
  return x;
}

}  // namespace

void penalize_row(float* logits, int vocab_size, const PenaltyRow& row, const PenaltyToken* tokens,
                  const std::uint32_t* masks) {
  for (int i = row.first_token; i < row.first_token + row.num_tokens; ++i) {
    float& x = logits[tokens[i].token_id];
    x = penalized(x, tokens[i], row);
  }
  if (row.mask < 0) return;
  const std::uint32_t* mask = masks + static_cast<std::int64_t>(row.mask) * ((vocab_size + 31) / 32);
  for (int i = 0; i < vocab_size; ++i) logits[i] = allowed(mask, i) ? logits[i] : kBanned;
}

void count_drawn(std::int64_t token_id, PenaltyRow& row, PenaltyToken* tokens) {
  if (token_id < 0) return;
  if (row.min_tokens_left > 0) --row.min_tokens_left;
  if (!row.counts()) return;
  PenaltyToken* const first = tokens + row.first_token;
  for (int i = 0; i < row.num_tokens; ++i) {
    if (first[i].token_id == token_id) {
      ++first[i].num_drawn;
      return;
    }
  }
  if (row.num_tokens < row.max_tokens) first[row.num_tokens++] = {static_cast<std::int32_t>(token_id), 1, 0.0f, 0};
}

}  // namespace tercet
