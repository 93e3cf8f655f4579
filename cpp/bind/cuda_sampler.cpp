#include "cuda_bind.h"
#include "logprobs.h"
#include "penalties.h"
#include "sampler.h"

namespace py = pybind11;

namespace tercet::cuda {

void bind_sampler(py::module_& m) {
  m.def("sample",
        [](uintptr_t logits, int num_rows, int vocab_size, uintptr_t params, uintptr_t token_ids, uintptr_t stream) {
          sample(address<const float>(logits), num_rows, vocab_size, address<const SamplingParams>(params),
                 address<int64_t>(token_ids), stream_of(stream));
        });
  m.def("penalize", [](uintptr_t logits, int num_rows, int vocab_size, uintptr_t rows, uintptr_t tokens,
                       uintptr_t masks, uintptr_t stream) {
    penalize(address<float>(logits), num_rows, vocab_size, address<const PenaltyRow>(rows),
             address<const PenaltyToken>(tokens), address<const uint32_t>(masks), stream_of(stream));
  });
  m.def("count_drawn", [](uintptr_t token_ids, int num_rows, uintptr_t rows, uintptr_t tokens, uintptr_t stream) {
    count_drawn(address<const int64_t>(token_ids), num_rows, address<PenaltyRow>(rows), address<PenaltyToken>(tokens),
                stream_of(stream));
  });
  m.def("logprobs", [](uintptr_t logits, int num_rows, int vocab_size, uintptr_t chosen_ids, uintptr_t num_top,
                       int width, uintptr_t chosen, uintptr_t top_ids, uintptr_t top_logprobs, uintptr_t stream) {
    logprobs(address<const float>(logits), num_rows, vocab_size, address<const int64_t>(chosen_ids),
             address<const int32_t>(num_top), width, address<float>(chosen), address<int64_t>(top_ids),
             address<float>(top_logprobs), stream_of(stream));
  });
}

}  // namespace tercet::cuda
