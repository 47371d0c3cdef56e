#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "codelets/kernels/bf16_arithmetic.h"

namespace sluice {

/// GEMM over the layouts that oneDNN packs weights into where the CPU has AVX-512: strips of 64
/// columns, in bf16 each [depth / 2][64][2] (its BA16a64b2a), in f32 [depth][64] (BA16a64b). Ours
/// because oneDNN reaches neither the memory's nor the units' limit at 8 to 32 rows in bf16, on
/// Intel's CPUs half of the units' limit at best; because with AMX, and in f32 without AVX-512, the
/// order of its sums changes with the number of rows; and because without AVX-512 it has no bf16 at
/// all (docs/records/performance.md).
constexpr std::int64_t strip_columns = 64;

enum class StripSource : std::uint8_t {
  cache,   ///< B was just written or read
  memory,  ///< B comes from memory, and what lies behind it is needed next
};

/// A micro-kernel, by what it keeps the sums of in registers at once.
struct StripTile {
  std::int64_t rows = 0;  ///< of A, at most
  std::int64_t columns = 0;

  bool operator==(const StripTile&) const = default;
  explicit operator bool() const { return rows > 0; }
};
struct StripKernel {
  StripTile tile;
  std::int64_t most_depth = 0;  ///< of a block
};
/// Those that this CPU has for an arithmetic and a type of B (Sandwich section 6, "Micro-Kernel
/// Generation"), the lowest first.
std::span<const StripKernel> strip_kernels(DType dtype, Bf16Arithmetic arithmetic);

/// How the loops over a product are cut, which changes no bit of it. What is left out is chosen by
/// the number of rows, and by the CPU.
struct StripSchedule {
  StripTile tile = {};  ///< of one of strip_kernels()
  /// Elements of depth that all rows pass over before the next ones, a multiple of
  /// strip_depth_step; 0: the kernel's own; more than StripKernel::most_depth is as much as that.
  std::int64_t block_depth = 0;
  /// How far ahead of itself what reads B once, from memory, fetches it; 0: not at all.
  std::optional<std::int64_t> fetch_bytes = {};

  bool operator==(const StripSchedule&) const = default;
};
/// Two steps of AMX, and a cache line of any B.
constexpr std::int64_t strip_depth_step = 64;
/// What a product of so many rows takes where its schedule says nothing: all but fetch_bytes, which
/// is the CPU's. Throws Error where the CPU has not the arithmetic.
StripSchedule own_strip_schedule(std::int64_t rows, Bf16Arithmetic arithmetic);

/// C = A B, or C += A B.
struct StripGemm {
  DType dtype = DType::bf16;  ///< of B: bf16, or f32 (with wide_a, by the portable arithmetic)
  std::int64_t rows = 0;
  std::int64_t depth = 0;            ///< even, but for the portable arithmetic
  const std::uint16_t* a = nullptr;  ///< bf16 [rows, depth]
  const float* wide_a = nullptr;     ///< f32 instead, for multiply_add and portable
  std::int64_t a_stride = 0;         ///< elements between rows of A
  const std::byte* b = nullptr;      ///< strips one behind the other, 64-byte aligned
  std::int64_t strips = 1;
  float* c = nullptr;         ///< [rows, 64 strips]
  std::int64_t c_stride = 0;  ///< elements between rows of C
  bool accumulate = false;
  StripSource source = StripSource::cache;
  Bf16Arithmetic arithmetic = fastest_bf16_arithmetic();
  StripSchedule schedule = {};
};
/// A value is the sum over depth in order, one or two products at a time; by the portable
/// arithmetic, from memory, in the order in which it reads B as four parts side by side; by amx, 32
/// at a time, of which even and odd ones are summed apart. So a row's bits do not depend on the
/// other rows, and not on the schedule. Throws Error where a schedule is not possible.
void strip_gemm(const StripGemm& call);

/// Bytes of a strip of a weight `depth` deep, as oneDNN pads it: each column to whole cache lines.
constexpr std::size_t strip_bytes(std::int64_t depth, DType dtype) {
  return (static_cast<std::size_t>(depth) * size_bytes(dtype) + 63) / 64 * 64 * strip_columns;
}

/// Whether all values of a strip are numbers.
enum class StripValues : std::uint8_t { finite, not_finite };

/// `columns` <= 64 rows of W [columns, depth], one behind the other.
struct StripRows {
  DType dtype = DType::bf16;  ///< or f32, for the portable arithmetic
  const void* rows = nullptr;
  std::int64_t columns = 0;
  std::int64_t depth = 0;  ///< even, but for the portable arithmetic
};
/// Packs them into a strip of strip_bytes(), the rest of it zero.
StripValues pack_strip(const StripRows& from, std::byte* strip,
                       Bf16Arithmetic arithmetic = fastest_bf16_arithmetic());

}  // namespace sluice
