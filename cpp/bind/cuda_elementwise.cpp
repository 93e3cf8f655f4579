#include <pybind11/stl.h>

#include "activation.h"
#include "block_copy.h"
#include "cuda_bind.h"
#include "heads.h"
#include "norm.h"
#include "quantize.h"

namespace py = pybind11;

namespace tercet::cuda {

void bind_elementwise(py::module_& m) {
  m.def("rms_norm", [](int dtype, uintptr_t x, int64_t x_outer_stride, int64_t x_inner_stride, uintptr_t residual,
                       int64_t residual_outer_stride, int64_t residual_inner_stride, uintptr_t weight, uintptr_t out,
                       int64_t num_outer, int num_inner, int dim, float eps, uintptr_t stream) {
    rms_norm({Dtype{dtype}, address(x), x_outer_stride, x_inner_stride, address(residual), residual_outer_stride,
              residual_inner_stride, address(weight), address(out), num_outer, num_inner, dim, eps},
             stream_of(stream));
  });
  m.def("gate_mul", [](int dtype, int activation, uintptr_t gate_up, int64_t row_stride, uintptr_t out,
                       int64_t num_rows, int dim, uintptr_t stream) {
    gate_mul(Dtype{dtype}, Activation{activation}, address(gate_up), row_stride, address(out), num_rows, dim,
             stream_of(stream));
  });
  m.attr("MAX_QUANTIZED_DIM") = kMaxQuantizedDim;
  m.def("quantize_rows", [](uintptr_t x, int64_t x_stride, uintptr_t values, uintptr_t scales, int64_t num_rows,
                            int dim, uintptr_t stream) {
    quantize_rows({address(x), x_stride, address(values), address<float>(scales), num_rows, dim}, stream_of(stream));
  });
  m.def("rms_norm_quantized",
        [](uintptr_t x, int64_t x_stride, uintptr_t residual, int64_t residual_stride, uintptr_t weight, float eps,
           uintptr_t values, uintptr_t scales, int64_t num_rows, int dim, uintptr_t stream) {
          rms_norm_quantized({address(x), x_stride, address(values), address<float>(scales), num_rows, dim},
                             address(residual), residual_stride, address(weight), eps, stream_of(stream));
        });
  m.def("silu_mul_quantized",
        [](uintptr_t gate_up, int64_t row_stride, uintptr_t of_rows, uintptr_t of_outputs, uintptr_t bias,
           uintptr_t values, uintptr_t scales, int64_t num_rows, int dim, uintptr_t stream) {
          silu_mul_quantized({address(gate_up), row_stride, address(values), address<float>(scales), num_rows, dim},
                             {address<float>(of_rows), address<float>(of_outputs), address(bias)}, stream_of(stream));
        });
  m.def("rescale", [](uintptr_t sums, int64_t num_rows, int num_outputs, uintptr_t of_rows, uintptr_t of_outputs,
                      uintptr_t bias, uintptr_t stream) {
    rescale(address(sums), num_rows, num_outputs, {address<float>(of_rows), address<float>(of_outputs), address(bias)},
            stream_of(stream));
  });
  m.def("place_heads",
        [](int dtype, int cache_dtype, uintptr_t q, int64_t q_token_stride, int64_t q_head_stride, uintptr_t k,
           int64_t k_token_stride, int64_t k_head_stride, uintptr_t v, int64_t v_token_stride, int64_t v_head_stride,
           uintptr_t q_norm, uintptr_t k_norm, float eps, uintptr_t positions, uintptr_t cos_sin, int64_t num_positions,
           uintptr_t k_cache, uintptr_t v_cache, float k_scale, float v_scale, uintptr_t slots, int64_t num_slots,
           int block_size, int64_t num_tokens, int num_heads, int num_kv_heads, int head_dim, uintptr_t stream) {
          place_heads({Dtype{dtype},
                       Dtype{cache_dtype},
                       address(q),
                       q_token_stride,
                       q_head_stride,
                       address(k),
                       k_token_stride,
                       k_head_stride,
                       address(v),
                       v_token_stride,
                       v_head_stride,
                       address(q_norm),
                       address(k_norm),
                       eps,
                       address<const int64_t>(positions),
                       address<const float>(cos_sin),
                       num_positions,
                       address(k_cache),
                       address(v_cache),
                       k_scale,
                       v_scale,
                       address<const int64_t>(slots),
                       num_slots,
                       block_size,
                       num_tokens,
                       num_heads,
                       num_kv_heads,
                       head_dim},
                      stream_of(stream));
        });
  m.def("copy_blocks",
        [](const std::vector<uintptr_t>& sources, const std::vector<uintptr_t>& targets, int64_t block_bytes,
           int64_t num_source_blocks, int64_t num_target_blocks, const std::vector<int>& source_blocks,
           const std::vector<int>& target_blocks, bool over_the_bus, uintptr_t stream) {
          copy_blocks({sources, targets, block_bytes, num_source_blocks, num_target_blocks, source_blocks,
                       target_blocks, over_the_bus},
                      stream_of(stream));
        });
}

}  // namespace tercet::cuda
