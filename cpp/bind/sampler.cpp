#include "tercet/sampler.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "bind.h"
#include "tercet/logprobs.h"
#include "tercet/penalties.h"
#include "tercet/philox.h"
#include "tercet/thread_pool.h"

namespace py = pybind11;

namespace tercet {
namespace {

// The caller vouches for the addresses: float32 logits [B, V], contiguous, params [B], int64 token_ids [B].
void sample(std::uintptr_t logits_address, std::int64_t num_rows, int vocab_size, std::uintptr_t params_address,
            std::uintptr_t token_ids_address) {
  const auto* logits = reinterpret_cast<const float*>(logits_address);
  const auto* params = reinterpret_cast<const SamplingParams*>(params_address);
  auto* token_ids = reinterpret_cast<std::int64_t*>(token_ids_address);
  const SampleRow sample_row = row_sampler();
  py::gil_scoped_release no_gil;
  parallel_with_scratch(num_rows > 1, num_rows, 1, sampler_scratch_floats(vocab_size), [&](Range rows, float* scratch) {
    for (std::int64_t b = rows.begin; b < rows.end; ++b) {
      token_ids[b] = sample_row(logits + b * vocab_size, vocab_size, params[b], scratch);
    }
  });
}

// float32 logits [B, V], contiguous, changed in place; rows [B] and what these refer to.
void penalize(std::uintptr_t logits_address, std::int64_t num_rows, int vocab_size, std::uintptr_t rows_address,
              std::uintptr_t tokens_address, std::uintptr_t masks_address) {
  auto* logits = reinterpret_cast<float*>(logits_address);
  const auto* rows = reinterpret_cast<const PenaltyRow*>(rows_address);
  py::gil_scoped_release no_gil;
  for (std::int64_t b = 0; b < num_rows; ++b) {
    penalize_row(logits + b * vocab_size, vocab_size, rows[b], reinterpret_cast<const PenaltyToken*>(tokens_address),
                 reinterpret_cast<const std::uint32_t*>(masks_address));
  }
}

// int64 token_ids [B]; rows [B] and their tokens, changed in place.
void count_drawn_of_rows(std::uintptr_t token_ids_address, std::int64_t num_rows, std::uintptr_t rows_address,
                         std::uintptr_t tokens_address) {
  const auto* token_ids = reinterpret_cast<const std::int64_t*>(token_ids_address);
  auto* rows = reinterpret_cast<PenaltyRow*>(rows_address);
  py::gil_scoped_release no_gil;
  for (std::int64_t b = 0; b < num_rows; ++b) {
    count_drawn(token_ids[b], rows[b], reinterpret_cast<PenaltyToken*>(tokens_address));
  }
}

// float32 logits [B, V], contiguous, int64 chosen_ids [B], int32 num_top [B]; results as LogprobsFound of each row.
void logprobs(std::uintptr_t logits_address, std::int64_t num_rows, int vocab_size, std::uintptr_t chosen_ids_address,
              std::uintptr_t num_top_address, int width, std::uintptr_t chosen_address, std::uintptr_t top_ids_address,
              std::uintptr_t top_logprobs_address) {
  const auto* logits = reinterpret_cast<const float*>(logits_address);
  const auto* chosen_ids = reinterpret_cast<const std::int64_t*>(chosen_ids_address);
  const auto* num_top = reinterpret_cast<const std::int32_t*>(num_top_address);
  auto* chosen = reinterpret_cast<float*>(chosen_address);
  auto* top_ids = reinterpret_cast<std::int64_t*>(top_ids_address);
  auto* top_logprobs = reinterpret_cast<float*>(top_logprobs_address);
  const LogprobsOfRow of_row = row_logprobs();
  py::gil_scoped_release no_gil;
  parallel_with_scratch(num_rows > 1, num_rows, 1, 0, [&](Range rows, float*) {
    for (std::int64_t b = rows.begin; b < rows.end; ++b) {
      of_row(logits + b * vocab_size, vocab_size, {chosen_ids[b], num_top[b]}, width,
             {chosen + b, top_ids + b * width, top_logprobs + b * width});
    }
  });
}

std::array<std::uint32_t, 4> philox(const std::array<std::uint32_t, 4>& counter,
                                    const std::array<std::uint32_t, 2>& key) {
  std::uint32_t words[4][1] = {{counter[0]}};
  philox4x32(words, counter[1], counter[2], counter[3], key[0], key[1]);
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

}  // namespace

void bind_sampler(py::module_& m) {
  m.def("sample", &sample, py::arg("logits"), py::arg("num_rows"), py::arg("vocab_size"), py::arg("params"),
        py::arg("token_ids"));
  m.def("penalize", &penalize, py::arg("logits"), py::arg("num_rows"), py::arg("vocab_size"), py::arg("rows"),
        py::arg("tokens"), py::arg("masks"));
  m.def("count_drawn", &count_drawn_of_rows, py::arg("token_ids"), py::arg("num_rows"), py::arg("rows"),
        py::arg("tokens"));
  m.def("logprobs", &logprobs, py::arg("logits"), py::arg("num_rows"), py::arg("vocab_size"), py::arg("chosen_ids"),
        py::arg("num_top"), py::arg("width"), py::arg("chosen"), py::arg("top_ids"), py::arg("top_logprobs"));
  m.def("philox4x32", &philox, py::arg("counter"), py::arg("key"));
}

}  // namespace tercet
