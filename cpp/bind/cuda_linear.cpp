#include "cuda_bind.h"
#include "linear_skinny.h"

namespace py = pybind11;

namespace tercet::cuda {

void bind_linear(py::module_& m) {
  m.attr("MAX_SKINNY_ROWS") = kMaxSkinnyRows;
  py::class_<SkinnyLinear>(m, "SkinnyLinear")
      .def(py::init([](int dtype, uintptr_t weight, int64_t row_stride, int num_outputs, int depth, uintptr_t bias) {
        return SkinnyLinear(Dtype{dtype}, address(weight), row_stride, num_outputs, depth, address(bias));
      }))
      .def("multiply", [](const SkinnyLinear& self, uintptr_t x, int64_t x_stride, int num_rows, uintptr_t out,
                          bool wide, bool gated, uintptr_t stream) {
        self.multiply(address(x), x_stride, num_rows, address(out), wide, gated, stream_of(stream));
      });
}

}  // namespace tercet::cuda
