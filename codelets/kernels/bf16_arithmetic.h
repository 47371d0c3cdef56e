#pragma once

#include <cstdint>

namespace sluice {

/// How the CPU sums up products of bf16 numbers in f32.
enum class Bf16Arithmetic : std::uint8_t {
  dot_products,  ///< two products at a time, by VDPBF16PS (AVX512_BF16)
  multiply_add,  ///< numbers widened to f32, one product at a time: any AVX-512
  portable,      ///< the same in whatever vectors there are (Highway), also of f32: every CPU
  amx,           ///< 32 products at a time in tiles, of whole strips only (strip_gemm.h)
};

/// The CPU and the operating system have what it takes, and oneDNN was not told to use less
/// (ONEDNN_MAX_CPU_ISA): then `portable` is left.
bool has_arithmetic(Bf16Arithmetic arithmetic);
/// Which one this CPU does fastest in vectors: Zen 4 issues a VDPBF16PS a cycle and as many f32
/// multiply-adds, half of the products; Intel's Xeons issue one VDPBF16PS in two cycles and two
/// multiply-adds in each, twice the products (docs/records/performance.md).
Bf16Arithmetic fastest_bf16_arithmetic();
/// The same for products of whole strips: AMX where it is.
Bf16Arithmetic fastest_strip_arithmetic();

}  // namespace sluice
