// The kernels of one instruction set, as functions over a share of the work. The callers divide it.
#pragma once

#include "tercet/activation.h"
#include "tercet/attention.h"
#include "tercet/cpu.h"
#include "tercet/linear.h"
#include "tercet/norm.h"
#include "tercet/rope.h"
#include "tercet/thread_pool.h"

namespace tercet {

struct Kernels {
  void (*linear)(const LinearCall& call, Range rows, Range tiles);
  void (*attend)(const AttentionCall& call, const AttentionTile& tile, Range segment, AttentionState state,
                 float* scratch);
  void (*finish)(const AttentionCall& call, const AttentionTile& tile, AttentionState state);
  void (*rms_norm)(const NormCall& call, Range rows);
  void (*rope)(const RopeCall& call, Range tokens);
  void (*gate_mul)(const GateMulCall& call, Range rows);
};

// The kernels for `isa`, which must be no more than detect_isa() can find here.
const Kernels& kernels(Isa isa);

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512bf16;

}  // namespace tercet
