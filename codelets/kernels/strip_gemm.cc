#include "codelets/kernels/strip_gemm.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codelets/kernels/simd.h"
#include "codelets/kernels/strip_kernels.h"

namespace sluice {
namespace {

/// As fast as memory even so: a cache line of each row after the other, in words of 32 bits.
StripValues pack_portable(const StripRows& from, std::byte* strip) {
  constexpr std::int64_t line_words = 16;
  const auto* rows = static_cast<const std::byte*>(from.rows);
  const auto row_bytes = from.depth * static_cast<std::int64_t>(size_bytes(from.dtype));
  auto* words = reinterpret_cast<std::uint32_t*>(strip);
  for (std::int64_t first = 0; first * 4 < row_bytes; first += line_words) {
    const std::int64_t count_bytes = std::min(row_bytes - first * 4, line_words * 4);
    for (std::int64_t column = 0; column < strip_columns; ++column) {
      std::uint32_t line[line_words] = {};
      if (column < from.columns) {
        std::memcpy(line, rows + column * row_bytes + first * 4,
                    static_cast<std::size_t>(count_bytes));
      }
      std::uint32_t* to = words + first * strip_columns + column;
      for (const std::uint32_t word : line) {
        *to = word;
        to += strip_columns;
      }
    }
  }
  const bool finite = simd::find_not_finite(rows, from.columns * from.depth, from.dtype) < 0;
  return finite ? StripValues::finite : StripValues::not_finite;
}

}  // namespace

std::span<const StripKernel> strip_kernels(DType dtype, Bf16Arithmetic arithmetic) {
  if (!has_arithmetic(arithmetic)) return {};
  switch (arithmetic) {
    case Bf16Arithmetic::portable:
      return strip::kernels_portable();
    case Bf16Arithmetic::amx:
      return dtype == DType::bf16 ? strip::kernels_amx() : std::span<const StripKernel>();
    default:
      return dtype == DType::bf16 ? strip::kernels_avx512(arithmetic)
                                  : std::span<const StripKernel>();
  }
}

StripSchedule own_strip_schedule(std::int64_t rows, Bf16Arithmetic arithmetic) {
  if (!has_arithmetic(arithmetic)) throw Error("this CPU has not the arithmetic of a schedule");
  switch (arithmetic) {
    case Bf16Arithmetic::portable:
      return strip::own_portable(rows);
    case Bf16Arithmetic::amx:
      return strip::own_amx(rows);
    default:
      return strip::own_avx512(rows, arithmetic);
  }
}

namespace {

void check(const StripSchedule& schedule, DType dtype, Bf16Arithmetic arithmetic) {
  const std::span<const StripKernel> kernels = strip_kernels(dtype, arithmetic);
  const bool is_there = std::any_of(kernels.begin(), kernels.end(), [&](const StripKernel& kernel) {
    return kernel.tile == schedule.tile;
  });
  if (schedule.tile && !is_there)
    throw Error("no kernel here multiplies tiles of {} x {}", schedule.tile.rows,
                schedule.tile.columns);
  if (schedule.block_depth < 0 || schedule.block_depth % strip_depth_step != 0)
    throw Error("blocks {} deep are not whole steps of {}", schedule.block_depth, strip_depth_step);
}

}  // namespace

void strip_gemm(const StripGemm& call) {
  const bool portable = call.arithmetic == Bf16Arithmetic::portable;
  if (!portable && (call.dtype != DType::bf16 || call.depth % 2 == 1))
    throw Error("strips in {}, {} deep, take the portable arithmetic", to_string(call.dtype),
                call.depth);
  if (call.arithmetic == Bf16Arithmetic::amx && call.wide_a != nullptr)
    throw Error("tiles of AMX multiply rows in bf16");
  if (call.schedule.tile || call.schedule.block_depth != 0)
    check(call.schedule, call.dtype, call.arithmetic);
  switch (call.arithmetic) {
    case Bf16Arithmetic::portable:
      return strip::gemm_portable(call);
    case Bf16Arithmetic::amx:
      return strip::gemm_amx(call);
    default:
      return strip::gemm_avx512(call);
  }
}

StripValues pack_strip(const StripRows& from, std::byte* strip, Bf16Arithmetic arithmetic) {
  return arithmetic == Bf16Arithmetic::portable ? pack_portable(from, strip)
                                                : strip::pack_avx512(from, strip);
}

}  // namespace sluice
