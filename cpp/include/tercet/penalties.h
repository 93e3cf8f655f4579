// What is done to a row of logits before a token is chosen of it: biases, tokens that are banned, and penalties for
// tokens that are in the text already.
//
// With x the logit of a token, all in float32 and each operation rounded on its own:
//   bias        x + bias
//   repetition  where the token is in the prompt or was drawn: x / r if x > 0, else x * r
//   frequency   where it was drawn c > 0 times: x - f * c
//   presence    there too, after that: x - p
//   banned      -inf whatever x is: the row has a mask and the token's bit is 0; or the token ends the request and more
//               tokens must be drawn first
//
// A row lists the tokens that it changes, each once. Against a count for every token of the vocabulary that is a few
// KB for a row instead of hundreds to hold and to upload, and only the logits of listed tokens are touched.
#pragma once

#include <cstdint>

namespace tercet {

// Packed by worker/ops/penalties.py, as is PenaltyRow.
struct PenaltyToken {
  std::int32_t token_id;
  std::int32_t num_drawn;
  float bias;
  std::int32_t kind;  // sum of kInPrompt and kEnds
};
static_assert(sizeof(PenaltyToken) == 16);

constexpr std::int32_t kInPrompt = 1;
constexpr std::int32_t kEnds = 2;  // banned while tokens must be drawn first

struct PenaltyRow {
  float repetition;              // > 0; 1: off
  float frequency;               // 0: off
  float presence;                // 0: off
  std::int32_t min_tokens_left;  // to be drawn before one that ends the request may be
  std::int32_t first_token;      // its tokens begin here in the array that all rows share
  std::int32_t num_tokens;
  std::int32_t max_tokens;  // that it has room for
  std::int32_t mask;        // the row of masks, [V / 32 rounded up] words, low bits first; -1: all are allowed

  // Whether it matters what is drawn.
  constexpr bool counts() const { return repetition != 1.0f || frequency != 0.0f || presence != 0.0f; }
};
static_assert(sizeof(PenaltyRow) == 32);

// Changes logits [V] in place, by tokens and masks that all rows share.
void penalize_row(float* logits, int vocab_size, const PenaltyRow& row, const PenaltyToken* tokens,
                  const std::uint32_t* masks);

// Takes note of a token that was drawn; not of one below 0. Its row must have room for a token that is new to it, else
// it is not counted.
void count_drawn(std::int64_t token_id, PenaltyRow& row, PenaltyToken* tokens);

}  // namespace tercet
