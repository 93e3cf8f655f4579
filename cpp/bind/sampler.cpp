#include "tercet/sampler.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "tercet/philox.h"
#include "tercet/thread_pool.h"

namespace py = pybind11;

namespace tercet {
namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

template <typename T>
const T* column(const Column<T>& values, const char* name, py::ssize_t num_rows) {
  if (values.ndim() == 1 && values.size() == num_rows) return values.data();
  throw std::invalid_argument(std::string(name) + " must have one dimension of " + std::to_string(num_rows) +
                              " elements");
}

// The caller vouches for the addresses: float32 logits [B, V], contiguous, and int64 token_ids [B].
void sample(std::uintptr_t logits_address, py::ssize_t num_rows, int vocab_size, const Column<float>& temperature,
            const Column<std::int32_t>& top_k, const Column<float>& top_p, const Column<float>& min_p,
            const Column<std::uint64_t>& seed, const Column<std::int64_t>& position, std::uintptr_t token_ids_address) {
  const float* temperatures = column(temperature, "temperature", num_rows);
  const std::int32_t* top_ks = column(top_k, "top_k", num_rows);
  const float* top_ps = column(top_p, "top_p", num_rows);
  const float* min_ps = column(min_p, "min_p", num_rows);
  const std::uint64_t* seeds = column(seed, "seed", num_rows);
  const std::int64_t* positions = column(position, "position", num_rows);
  const auto* logits = reinterpret_cast<const float*>(logits_address);
  auto* token_ids = reinterpret_cast<std::int64_t*>(token_ids_address);
  const SampleRow sample_row = row_sampler();
  py::gil_scoped_release no_gil;
  parallel_with_scratch(num_rows > 1, num_rows, 1, sampler_scratch_floats(vocab_size), [&](Range rows, float* scratch) {
    for (std::int64_t b = rows.begin; b < rows.end; ++b) {
      token_ids[b] = sample_row(logits + b * vocab_size, vocab_size,
                                {temperatures[b], top_ks[b], top_ps[b], min_ps[b], seeds[b], positions[b]}, scratch);
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
  m.def("sample", &sample, py::arg("logits"), py::arg("num_rows"), py::arg("vocab_size"), py::arg("temperature"),
        py::arg("top_k"), py::arg("top_p"), py::arg("min_p"), py::arg("seed"), py::arg("position"),
        py::arg("token_ids"));
  m.def("philox4x32", &philox, py::arg("counter"), py::arg("key"));
}

}  // namespace tercet
