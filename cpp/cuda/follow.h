#pragma once

#include <cstdint>

#include "dtype.h"
#include "step_record.h"

namespace tercet::cuda {

// The columns of R rows on the GPU, of which the first tokens of some are not known on the host yet.
struct FollowRows {
  const int* follows;       // [R], the row of the step before whose token is this one's first; -1: it is known
  const int* query_starts;  // [R + 1]
  const int* stop_ids;      // [R, kNumStopIds], filled up with -1
  std::int64_t* token_ids;  // [T]
  std::int64_t* slots;      // [T]
  int* context_lens;        // [R]
  int* status;              // [R]
  int num_rows;
};

// Between two steps of a ring: rows that follow take the tokens of the last one. A row is empty, as `commit_step` would
// have left it, if there is none or the sequence ended with it. Throws std::invalid_argument if the rows are more than
// a record has room for, std::runtime_error if it cannot be launched.
void follow_step(const FollowRows& rows, const RecordRing& ring, Stream stream);

}  // namespace tercet::cuda
