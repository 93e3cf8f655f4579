// Kernels over raw addresses: worker/ops checks shapes, types and devices before it hands them over.
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "bind.h"
#include "tercet/activation.h"
#include "tercet/attention.h"
#include "tercet/block_copy.h"
#include "tercet/cpu.h"
#include "tercet/kv_write.h"
#include "tercet/linear.h"
#include "tercet/norm.h"
#include "tercet/rope.h"
#include "tercet/thread_pool.h"

namespace py = pybind11;

namespace tercet {
namespace {

// The instruction set in use: detect_isa() until a test chooses a lesser one.
Isa& active_isa() {
  static Isa isa = detect_isa();
  return isa;
}

void set_isa(const std::string& name) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    if (name == isa_name(isa) && isa <= detect_isa()) {
      active_isa() = isa;
      return;
    }
  }
  throw std::invalid_argument("instruction set '" + name + "' is not usable here; the best is " +
                              isa_name(detect_isa()));
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

template <typename T>
const T* pointer_to(uintptr_t address) {
  return reinterpret_cast<const T*>(address);
}

Dtype dtype(bool is_bf16) { return is_bf16 ? Dtype::bf16 : Dtype::f32; }

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("isa", [] { return std::string(isa_name(active_isa())); });
  m.def("set_isa", &set_isa, py::arg("name"));
  m.def("num_threads", &num_threads, py::call_guard<py::gil_scoped_release>());
  m.def("set_num_threads", &set_num_threads, py::arg("count"), py::call_guard<py::gil_scoped_release>());

  py::class_<PackedWeight>(m, "PackedWeight")
      .def(py::init([](uintptr_t weight, bool is_bf16, int64_t num_outputs, int64_t depth, int64_t row_stride,
                       uintptr_t bias) {
             py::gil_scoped_release release;
             return std::make_unique<PackedWeight>(pointer(weight), dtype(is_bf16), num_outputs, depth, row_stride,
                                                   pointer(bias));
           }),
           py::arg("weight"), py::arg("is_bf16"), py::arg("num_outputs"), py::arg("depth"), py::arg("row_stride"),
           py::arg("bias"))
      .def("linear", [](const PackedWeight& self, uintptr_t x, int64_t x_stride, int64_t num_rows, uintptr_t out,
                        bool out_is_bf16) {
        py::gil_scoped_release release;
        linear({&self, pointer(x), x_stride, num_rows, pointer(out), dtype(out_is_bf16)}, active_isa());
      });

  m.def("paged_attention", [](bool is_bf16, uintptr_t q, int64_t q_token_stride, int64_t q_head_stride,
                              uintptr_t k_cache, uintptr_t v_cache, uintptr_t out, int64_t num_tokens,
                              int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t num_blocks,
                              int64_t block_size, int64_t num_sequences, uintptr_t query_starts, uintptr_t context_lens,
                              uintptr_t block_tables, int64_t table_width, float scale, int64_t window, float softcap) {
    py::gil_scoped_release release;
    paged_attention({dtype(is_bf16),
                     pointer(q),
                     q_token_stride,
                     q_head_stride,
                     pointer(k_cache),
                     pointer(v_cache),
                     pointer(out),
                     num_tokens,
                     num_heads,
                     num_kv_heads,
                     head_dim,
                     num_blocks,
                     block_size,
                     num_sequences,
                     pointer_to<int32_t>(query_starts),
                     pointer_to<int32_t>(context_lens),
                     pointer_to<int32_t>(block_tables),
                     table_width,
                     scale,
                     window,
                     softcap},
                    active_isa());
  });

  m.def("write_kv",
        [](bool is_bf16, uintptr_t k, int64_t k_token_stride, int64_t k_head_stride, uintptr_t v,
           int64_t v_token_stride, int64_t v_head_stride, uintptr_t k_cache, uintptr_t v_cache, int64_t num_tokens,
           int64_t num_kv_heads, int64_t head_dim, int64_t num_blocks, int64_t block_size, uintptr_t slots) {
          py::gil_scoped_release release;
          write_kv({dtype(is_bf16), pointer(k), pointer(v), k_token_stride, k_head_stride, v_token_stride,
                    v_head_stride, pointer(k_cache), pointer(v_cache), num_tokens, num_kv_heads, head_dim, num_blocks,
                    block_size, pointer_to<int64_t>(slots)});
        });

  m.def("copy_blocks", [](const std::vector<uintptr_t>& sources, const std::vector<uintptr_t>& targets,
                          int64_t block_bytes, int64_t num_source_blocks, int64_t num_target_blocks,
                          const std::vector<int32_t>& source_blocks, const std::vector<int32_t>& target_blocks) {
    py::gil_scoped_release release;
    copy_blocks({sources, targets, block_bytes, num_source_blocks, num_target_blocks, source_blocks, target_blocks});
  });

  m.def("rms_norm", [](bool is_bf16, uintptr_t x, int64_t x_outer_stride, int64_t x_inner_stride, uintptr_t residual,
                       int64_t residual_outer_stride, int64_t residual_inner_stride, uintptr_t weight, uintptr_t out,
                       int64_t num_outer, int64_t num_inner, int64_t dim, float eps) {
    py::gil_scoped_release release;
    rms_norm({dtype(is_bf16), pointer(x), x_outer_stride, x_inner_stride, pointer(residual), residual_outer_stride,
              residual_inner_stride, pointer(weight), pointer(out), num_outer, num_inner, dim, eps},
             active_isa());
  });

  m.def("apply_rope",
        [](bool is_bf16, uintptr_t q, int64_t q_token_stride, int64_t q_head_stride, int64_t num_heads, uintptr_t k,
           int64_t k_token_stride, int64_t k_head_stride, int64_t num_kv_heads, int64_t num_tokens, int64_t head_dim,
           uintptr_t positions, uintptr_t cos_sin, int64_t num_positions) {
          py::gil_scoped_release release;
          apply_rope({dtype(is_bf16), pointer(q), q_token_stride, q_head_stride, num_heads, pointer(k), k_token_stride,
                      k_head_stride, num_kv_heads, num_tokens, head_dim, pointer_to<int64_t>(positions),
                      pointer_to<float>(cos_sin), num_positions},
                     active_isa());
        });

  m.def("gate_mul", [](bool is_bf16, int activation, uintptr_t gate_up, int64_t row_stride, uintptr_t out,
                       int64_t num_rows, int64_t dim) {
    py::gil_scoped_release release;
    gate_mul({dtype(is_bf16), Activation{activation}, pointer(gate_up), row_stride, pointer(out), num_rows, dim},
             active_isa());
  });
}

}  // namespace tercet
