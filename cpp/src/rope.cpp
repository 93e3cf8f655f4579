#include "tercet/rope.h"

#include <stdexcept>
#include <string>

#include "tercet/kernels.h"

namespace tercet {

void apply_rope(const RopeCall& call, Isa isa) {
  for (int64_t token = 0; token < call.num_tokens; ++token) {
    const int64_t position = call.positions[token];
    if (position < 0 || position >= call.num_positions) {
      throw std::out_of_range("token " + std::to_string(token) + " stands at position " + std::to_string(position) +
                              ", the rotary table has " + std::to_string(call.num_positions));
    }
  }
  const auto run = kernels(isa).rope;
  const int64_t num_elements = (call.num_heads + call.num_kv_heads) * call.head_dim;
  parallel(call.num_tokens * num_elements >= kMinElementsToShare, call.num_tokens, row_grain(num_elements),
           [&](Range tokens) { run(call, tokens); });
}

}  // namespace tercet
