// The parts of the Python module `worker._kernels`, one function a file. Addresses and streams come as integers;
// worker/ops checks shapes, dtypes and devices before it hands them over.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "dtype.h"

namespace tercet::cuda {

template <typename T = void>
T* address(std::uintptr_t value) {
  return reinterpret_cast<T*>(value);
}

inline Stream stream_of(std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); }

void bind_attention(pybind11::module_& m);
void bind_elementwise(pybind11::module_& m);
void bind_linear(pybind11::module_& m);
void bind_sampler(pybind11::module_& m);
void bind_step_loop(pybind11::module_& m);

}  // namespace tercet::cuda
