#include "tercet/sampler.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "bind.h"
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
  m.def("philox4x32", &philox, py::arg("counter"), py::arg("key"));
}

}  // namespace tercet
