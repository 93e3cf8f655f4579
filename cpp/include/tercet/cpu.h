// Which instruction set the kernels use.
#pragma once

namespace tercet {

// In order: each includes those before it. avx2 means AVX2 + FMA + F16C; avx512 adds F, BW, DQ, VL; avx512bf16 adds
// BF16.
enum class Isa { portable, avx2, avx512, avx512bf16 };

// The best that this CPU has and that is compiled in. The environment variable TERCET_ISA=<name> chooses a lesser one;
// it is read once. Throws std::runtime_error, which says what is there, if TERCET_ISA asks for more or is no name.
Isa detect_isa();

const char* isa_name(Isa isa);

}  // namespace tercet
