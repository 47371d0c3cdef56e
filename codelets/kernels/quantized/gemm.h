#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/weight_format.h"
#include "codelets/kernels/quantized/digits.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::quantized {

/// What sums up products of codes and digits. All give the same bits.
enum class Arithmetic : std::uint8_t {
  portable,  ///< 16-bit multiply-adds in whatever vectors there are (Highway): every CPU
  vnni,      ///< dot products of bytes: AVX512_VNNI
  amx,       ///< the same in tiles: AMX-INT8
};
/// "vnni" and so on.
constexpr std::string_view to_string(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::vnni:
      return "vnni";
    case Arithmetic::amx:
      return "amx";
    default:
      return "portable";
  }
}
/// The CPU and the operating system have what it takes, and oneDNN was not told to use less.
bool has_arithmetic(Arithmetic arithmetic);
Arithmetic fastest_arithmetic();

/// What an arithmetic multiplies.
constexpr DigitOrder digit_order(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::portable ? DigitOrder::words : DigitOrder::bytes;
}

/// C = X W^T, or C += X W^T, with X as digits and W [64 strips, in] in int4, int8 or fp4.
///
///   for block of StripLayout::block() inputs, in order
///     sum     = sum of code * number - zero point * sum of number    exactly, as integers
///     c[r, j] = fma(float(sum), scale of x * scale of W, c[r, j])    in f32
///
/// so that a row's bits depend neither on the other rows, nor on how many there are, nor on the
/// CPU. A NaN or an infinity in a row of X makes all of its results NaN.
struct Gemm {
  WeightFormat format;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  const std::byte* digits = nullptr;  ///< of DigitLayout(format, in, digit_order(arithmetic))
  const std::byte* w = nullptr;       ///< strips one behind the other, 64-byte aligned
  std::int64_t strips = 1;
  float* c = nullptr;         ///< [rows, 64 strips]
  std::int64_t c_stride = 0;  ///< elements between rows of C
  bool accumulate = false;
  StripSource source = StripSource::memory;
  Arithmetic arithmetic = fastest_arithmetic();
};
/// Throws Error for formats whose codes are no integers.
void gemm(const Gemm& call);

}  // namespace sluice::quantized
