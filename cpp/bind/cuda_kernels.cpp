#include "cuda_bind.h"

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "CUDA kernels. Typed in _kernels.pyi.";
  tercet::cuda::bind_attention(m);
  tercet::cuda::bind_elementwise(m);
  tercet::cuda::bind_linear(m);
  tercet::cuda::bind_sampler(m);
  tercet::cuda::bind_step_loop(m);
}
