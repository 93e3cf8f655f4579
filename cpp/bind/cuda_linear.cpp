#include "cuda_bind.h"
#include "linear_skinny.h"

namespace py = pybind11;

namespace tercet::cuda {

void bind_linear(py::module_& m) {
  py::class_<SkinnyLinear>(m, "SkinnyLinear")
      .def(py::init([](int dtype, uintptr_t weight, int64_t row_stride, int num_outputs, int depth, uintptr_t bias,
                       uintptr_t left, int num_multiprocessors) {
        return SkinnyLinear(Dtype{dtype}, address(weight), row_stride, num_outputs, depth, address(bias), address(left),
                            num_multiprocessors);
      }))
      .def_static("left_bytes", &SkinnyLinear::left_bytes)
      .def("multiply", [](const SkinnyLinear& self, uintptr_t x, int64_t x_stride, int num_rows, uintptr_t out,
                          bool wide, bool gated, uintptr_t stream) {
        self.multiply(address(x), x_stride, num_rows, address(out), wide, gated, stream_of(stream));
      });
}

}  // namespace tercet::cuda
