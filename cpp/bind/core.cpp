#include "bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "KV blocks, sampling and CPU kernels. Typed in _core.pyi.";
  tercet::bind_blocks(m);
  tercet::bind_sampler(m);
  tercet::bind_kernels(m);
}
