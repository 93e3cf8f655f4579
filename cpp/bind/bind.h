// The parts of the Python module `worker._core`, one function a file.
#pragma once

#include <pybind11/pybind11.h>

namespace tercet {

void bind_blocks(pybind11::module_& m);
void bind_sampler(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);

}  // namespace tercet
