#include <stdexcept>

#include "attention.h"
#include "cuda_bind.h"

namespace py = pybind11;

namespace tercet::cuda {
namespace {

// The attention of one step, for all its layers. The caller keeps every tensor whose address it gives.
class StepAttention {
 public:
  StepAttention(const AttentionShape& shape, const AttentionRows& rows, const AttentionBounds& bounds,
                int num_multiprocessors)
      : shape_(shape), rows_(rows), has_kernels_(attention_has_kernels(shape)) {
    if (has_kernels_) sizes_ = attention_sizes(shape, rows, bounds, num_multiprocessors);
  }

  // So many that what follows them is aligned.
  int64_t workspace_words() const { return (sizes_.plan_words + sizes_.state_words + 3) / 4 * 4; }

  void prepare(int* workspace, Stream stream) {
    plan_ = workspace;
    plan_is_new_ = true;
    states_ = reinterpret_cast<float*>(workspace + sizes_.plan_words);
    if (has_kernels_) plan_attention(shape_, rows_, sizes_, plan_, stream);
  }

  void attend(const AttentionTensors& tensors, Stream stream) {
    if (!has_kernels_) return attention_simple(shape_, rows_, tensors, stream);
    if (plan_ == nullptr) throw std::logic_error("attend before prepare");
    attention_prefill(shape_, rows_, tensors, sizes_, plan_, stream);
    const bool has_prefill = sizes_.num_tiles > 0;
    attention_decode(shape_, rows_, tensors, sizes_, plan_, states_, has_prefill || !plan_is_new_, stream);
    plan_is_new_ = false;
  }

 private:
  AttentionShape shape_;
  AttentionRows rows_;
  bool has_kernels_;
  AttentionSizes sizes_{};
  int* plan_ = nullptr;
  bool plan_is_new_ = false;  // the kernel that made it was the last one launched
  float* states_ = nullptr;
};

}  // namespace

void bind_attention(py::module_& m) {
  py::class_<StepAttention>(m, "StepAttention")
      .def(py::init([](int dtype, int cache_dtype, int head_dim, int num_heads, int num_kv_heads, int block_size,
                       int64_t num_blocks, uintptr_t query_starts, uintptr_t context_lens, uintptr_t block_tables,
                       int num_sequences, int num_tokens, int table_width, int64_t total_context, int num_chunked,
                       int num_multiprocessors, int window) {
        return StepAttention(
            {Dtype{dtype}, Dtype{cache_dtype}, head_dim, num_heads, num_kv_heads, block_size, num_blocks, window},
            {address<const int>(query_starts), address<const int>(context_lens), address<const int>(block_tables),
             num_sequences, num_tokens, table_width},
            {total_context, num_chunked}, num_multiprocessors);
      }))
      .def_property_readonly("workspace_words", &StepAttention::workspace_words)
      .def("prepare", [](StepAttention& self, uintptr_t workspace,
                         uintptr_t stream) { self.prepare(address<int>(workspace), stream_of(stream)); })
      .def("attend", [](StepAttention& self, uintptr_t q, int64_t q_token_stride, int64_t q_head_stride,
                        uintptr_t k_cache, uintptr_t v_cache, uintptr_t out, float scale, float k_scale, float v_scale,
                        float softcap, uintptr_t stream) {
        self.attend({address(q), q_token_stride, q_head_stride, address(k_cache), address(v_cache), address(out), scale,
                     k_scale, v_scale, softcap},
                    stream_of(stream));
      });
}

}  // namespace tercet::cuda
