#include "bind.h"

namespace tercet {

void bind_sampler(pybind11::module_&) {}

}  // namespace tercet
