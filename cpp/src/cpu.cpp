#include "tercet/cpu.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tercet {
namespace {

constexpr Isa kAll[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16};

Isa best_isa() {
  [[maybe_unused]] Isa best = Isa::portable;
#ifdef TERCET_HAVE_AVX2
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return best;
  best = Isa::avx2;
#ifdef TERCET_HAVE_AVX512
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return best;
  best = Isa::avx512;
#ifdef TERCET_HAVE_AVX512BF16
  if (__builtin_cpu_supports("avx512bf16")) best = Isa::avx512bf16;
#endif
#endif
#endif
  return best;
}

Isa choose_isa() {
  const Isa best = best_isa();
  const char* asked = std::getenv("TERCET_ISA");
  if (asked == nullptr || *asked == '\0') return best;
  for (const Isa isa : kAll) {
    if (std::string(asked) == isa_name(isa) && isa <= best) return isa;
  }
  std::string usable;
  for (const Isa isa : kAll) {
    if (isa <= best) usable += std::string(usable.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::runtime_error("TERCET_ISA: '" + std::string(asked) + "' cannot be used here; this build and CPU have " +
                           usable);
}

}  // namespace

Isa detect_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return "portable";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::avx512bf16:
      return "avx512bf16";
  }
  return "unknown";
}

}  // namespace tercet
