// The gate of a layer, alike in all kernels that apply it.
#pragma once

namespace tercet::cuda {

// silu(gate) * up
__device__ inline float silu_times(float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; }

}  // namespace tercet::cuda
