// A thread a row.
#include "commit.h"
#include "follow.h"
#include "kernel.cuh"

namespace tercet::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    follow_kernel(__grid_constant__ const FollowRows rows, const std::int32_t* last_tokens) {
  const int r = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (r >= rows.num_rows || rows.follows[r] < 0) return;
  const int token = last_tokens[rows.follows[r]], place = rows.query_starts[r];
  bool ended = token < 0;
#pragma unroll
  for (int i = 0; i < kNumStopIds; ++i) ended |= rows.stop_ids[r * kNumStopIds + i] == token;
  rows.token_ids[place] = ended ? 0 : token;
  if (!ended) return;
  rows.slots[place] = -1;
  rows.context_lens[r] = 0;
  rows.status[r] = 0;
}

}  // namespace

void follow_step(const FollowRows& rows, const RecordRing& ring, Stream stream) {
  if (rows.num_rows > ring.max_rows) {
    throw std::invalid_argument(std::to_string(rows.num_rows) + " rows do not fit into a record of " +
                                std::to_string(ring.max_rows));
  }
  if (rows.num_rows == 0) return;
  follow_kernel<<<(rows.num_rows + kThreads - 1) / kThreads, kThreads, 0, stream>>>(rows, ring.last_tokens);
  check_launch("follow_step");
}

}  // namespace tercet::cuda
