#pragma once

#include <cstdint>

#include "codelets/kernels/bf16_arithmetic.h"

namespace sluice {

/// GEMM with AVX-512 over the layout that oneDNN packs bf16 weights into where the CPU has
/// AVX512_BF16 (its BA16a64b2a): strips of 64 columns, each [depth / 2][64][2]. Ours because oneDNN
/// reaches neither the memory's nor the units' limit at 8 to 32 rows, and on Intel's CPUs half of
/// the units' limit at best (docs/performance.md).
constexpr std::int64_t strip_columns = 64;

/// The CPU and the operating system have AVX-512 (F, BW, DQ and VL).
bool has_bf16_strips();

enum class StripSource : std::uint8_t {
  cache,   ///< B was just written or read
  memory,  ///< B comes from memory, and what lies behind it is needed next
};

/// C = A B, or C += A B.
struct StripGemm {
  std::int64_t rows = 0;
  std::int64_t depth = 0;            ///< even
  const std::uint16_t* a = nullptr;  ///< bf16 [rows, depth]
  const float* wide_a = nullptr;     ///< f32 instead, for multiply_add alone
  std::int64_t a_stride = 0;         ///< elements between rows of A
  const std::uint16_t* b = nullptr;  ///< bf16 [depth / 2][64][2], 64-byte aligned
  float* c = nullptr;                ///< [rows, 64]
  std::int64_t c_stride = 0;         ///< elements between rows of C
  bool accumulate = false;
  StripSource source = StripSource::cache;
  Bf16Arithmetic arithmetic = fastest_bf16_arithmetic();
};
/// A value is the sum over depth in order, one or two products at a time: a row's bits do not
/// depend on the other rows.
void strip_gemm(const StripGemm& call);

/// Bytes of a strip of a weight `depth` deep, as oneDNN pads it.
constexpr std::int64_t strip_elements(std::int64_t depth) {
  return (depth + 31) / 32 * 32 * strip_columns;
}

/// Whether all values of a strip are numbers.
enum class StripValues : std::uint8_t { finite, not_finite };

/// Packs `columns` <= 64 rows of W, bf16 [columns, depth], one behind the other, into a strip of
/// strip_elements(depth), the rest of it zero. `depth` is even.
StripValues pack_strip(const std::uint16_t* rows, std::int64_t columns, std::int64_t depth,
                       std::uint16_t* strip);

}  // namespace sluice
