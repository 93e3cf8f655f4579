#include "cuda_bind.h"
#include "norm.h"

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
}

}  // namespace tercet::cuda
