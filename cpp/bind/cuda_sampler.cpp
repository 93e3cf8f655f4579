#include "cuda_bind.h"
#include "sampler.h"

namespace py = pybind11;

namespace tercet::cuda {

void bind_sampler(py::module_& m) {
  m.def("sample",
        [](uintptr_t logits, int num_rows, int vocab_size, uintptr_t params, uintptr_t token_ids, uintptr_t stream) {
          sample(address<const float>(logits), num_rows, vocab_size, address<const SamplingParams>(params),
                 address<int64_t>(token_ids), stream_of(stream));
        });
}

}  // namespace tercet::cuda
