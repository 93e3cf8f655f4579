#pragma once

#include <cstdint>

#include "dtype.h"
#include "step_record.h"
#include "tercet/sampler.h"

namespace tercet::cuda {

constexpr int kNumStopIds = 8;

// The columns of R rows on the GPU; row r computes token r of the step.
struct CommitRows {
  const std::int64_t* sampled;  // [R], -1: logits that were not finite
  std::int64_t* token_ids;      // [R], the token that the next step computes,
  std::int64_t* positions;      // where it stands,
  std::int64_t* slots;          // and where its K and V go; -1: nowhere
  int* context_lens;            // [R], that token included; 0 of an empty row
  const int* block_tables;      // [R, W]
  SamplingParams* params;       // [R]
  int* status;                  // [R], 1: live, 0: empty
  int* remaining;               // [R], tokens that the row may still get
  const int* stop_ids;          // [R, kNumStopIds], filled up with -1
  int num_rows, table_width, block_size;
};

// The end of a step: each live row takes its token and moves on by one position, or ends and is empty; then the step's
// record goes into the ring. Meant as the last kernel of a captured graph. Throws std::invalid_argument if the rows are
// more than a record has room for, std::runtime_error if it cannot be launched.
void commit_step(const CommitRows& rows, const RecordRing& ring, Stream stream);

}  // namespace tercet::cuda
