// What a step leaves for the host, and where. Plain C++: the loop that reads it knows no CUDA.
#pragma once

#include <cstdint>

namespace tercet::cuda {

// Lies in pinned host memory, `tokens()` behind it. The sequence number, from 1 on, is written last.
struct StepRecord {
  std::uint64_t sequence;
  std::int64_t time_ns;  // of the GPU's clock, when the step was done
  std::int32_t num_rows;
  std::int32_t num_live;  // rows that go on

  const std::int32_t* tokens() const { return reinterpret_cast<const std::int32_t*>(this + 1); }
};

constexpr int kNotFinite = -1, kNoToken = -2;  // in place of a token

// Record s is at (s - 1) % num_records.
struct RecordRing {
  char* records;                 // on the host, reached from the GPU
  std::uint64_t* num_committed;  // on the GPU,
  std::int32_t* last_tokens;     // and there, [max_rows], those of the last record
  int num_records, max_rows;

  std::int64_t stride() const {
    const std::int64_t bytes = static_cast<std::int64_t>(sizeof(StepRecord)) + 4 * static_cast<std::int64_t>(max_rows);
    return (bytes + 127) / 128 * 128;
  }
};

}  // namespace tercet::cuda
