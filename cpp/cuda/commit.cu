// One thread block, a thread a row in rounds: the record is complete when its threads have met, and the first of them
// releases it to the host.
#include <algorithm>

#include "commit.h"
#include "dependent_launch.cuh"
#include "kernel.cuh"

namespace tercet::cuda {
namespace {

constexpr int kMaxThreads = 512;

struct Commit {
  CommitRows rows;
  char* records;
  std::int64_t record_stride;
  int num_records;
  std::uint64_t* num_committed;
  std::int32_t* last_tokens;
};

__device__ std::int64_t gpu_time_ns() {
  std::int64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time)::"memory");
  return time;
}

// Whoever sees this value, on the host as well, sees what the block wrote before it.
__device__ void release_to_system(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// Returns what the record says of row r; `goes_on`: whether it is live after the step. Nothing that is read hangs on
// what was read before but the block, so that a row waits for memory twice.
__device__ int commit_row(const CommitRows& rows, int r, bool& goes_on) {
  const bool live = rows.status[r] != 0;
  const int token = max(static_cast<int>(rows.sampled[r]), kNotFinite);
  const int remaining = rows.remaining[r] - live;
  const int position = static_cast<int>(rows.positions[r]) + 1;
  const int context_len = rows.context_lens[r] + 1;
  const std::int64_t sampled_position = rows.params[r].position + 1;
  bool stops = false;
#pragma unroll
  for (int i = 0; i < kNumStopIds; ++i) stops |= rows.stop_ids[r * kNumStopIds + i] == token;

  goes_on = live && token >= 0 && remaining > 0 && !stops;
  rows.status[r] = goes_on;
  rows.remaining[r] = remaining;
  rows.context_lens[r] = goes_on ? context_len : 0;
  if (goes_on) {
    rows.token_ids[r] = token;
    rows.positions[r] = position;
    rows.params[r].position = sampled_position;
  }
  const int column = position / rows.block_size, offset = position % rows.block_size;
  std::int64_t slot = -1;
  // A table that is too narrow belongs to a row that computes no further step.
  if (goes_on && column < rows.table_width) {
    const std::int64_t block = rows.block_tables[std::int64_t{r} * rows.table_width + column];
    slot = block * rows.block_size + offset;
  }
  rows.slots[r] = slot;
  return live ? token : kNoToken;
}

__global__ void __launch_bounds__(kMaxThreads) commit_kernel(__grid_constant__ const Commit commit) {
  wait_for_kernel_before();
  const CommitRows& rows = commit.rows;
  const std::uint64_t sequence = *commit.num_committed + 1;
  const auto place = static_cast<std::int64_t>((sequence - 1) % commit.num_records);
  auto* record = reinterpret_cast<StepRecord*>(commit.records + place * commit.record_stride);
  auto* tokens = reinterpret_cast<std::int32_t*>(record + 1);
  int num_live = 0;
  for (int first = 0; first < rows.num_rows; first += blockDim.x) {
    const int r = first + static_cast<int>(threadIdx.x);
    bool goes_on = false;
    if (r < rows.num_rows) tokens[r] = commit.last_tokens[r] = commit_row(rows, r, goes_on);
    num_live += __syncthreads_count(goes_on);
  }
  if (threadIdx.x != 0) return;
  *commit.num_committed = sequence;
  record->num_rows = rows.num_rows;
  record->num_live = num_live;
  record->time_ns = gpu_time_ns();
  release_to_system(&record->sequence, sequence);
}

}  // namespace

void commit_step(const CommitRows& rows, const RecordRing& ring, Stream stream) {
  if (rows.num_rows > ring.max_rows) {
    throw std::invalid_argument(std::to_string(rows.num_rows) + " rows do not fit into a record of " +
                                std::to_string(ring.max_rows));
  }
  const int num_threads = std::clamp((rows.num_rows + kWarp - 1) / kWarp * kWarp, kWarp, kMaxThreads);
  launch_behind(commit_kernel, dim3(1), num_threads, 0, stream,
                Commit{rows, ring.records, ring.stride(), ring.num_records, ring.num_committed, ring.last_tokens},
                "commit_step");
}

}  // namespace tercet::cuda
