#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/weight_format.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::quantized {

/// How a row's 16-bit numbers lie, as the kernels read them four bytes at a time.
enum class DigitOrder : std::uint8_t {
  words,  ///< as they are; of four neighbours the first, the third, the second, the fourth
  bytes,  ///< of each block the upper digits, then the lower: number = 256 upper + lower
};

/// A row of x as fixed point, for products with codes: of each block of StripLayout::block() inputs
///
///   number[i] = x[i] / scale, rounded to the nearest integer, ties to even
///   scale     = the smallest power of two for which |number| <= 32639 = 127 * 256 + 127
///
/// so that two signed digits of 8 bits hold a number. An x off the scale's grid is wrong by at most
/// 2^-15 of the block's largest; a bf16 is exact down to 2^-7 of the largest. The same bits on
/// every CPU. A block with a NaN or an infinity has the scale NaN.
class DigitLayout {
 public:
  DigitLayout(const WeightFormat& format, std::int64_t in, DigitOrder order)
      : strip_(format, in),
        in_(in),
        order_(order),
        codes_(format.codes),
        has_zero_points_(format.has_zero_points) {}

  const StripLayout& strip() const { return strip_; }
  std::int64_t in() const { return in_; }
  DigitOrder order() const { return order_; }

  /// A row: digits, then of each block the scale and the sum, f32 and int32.
  std::int64_t scales_offset() const { return 2 * strip_.depth(); }
  std::int64_t starts_offset() const { return scales_offset() + 4 * strip_.num_blocks(); }
  /// An odd number of cache lines: rows lie in different sets of a cache.
  std::int64_t row_bytes() const {
    return (starts_offset() + 4 * strip_.num_blocks() + 63) / 64 * 64 | 64;
  }

  /// What a block's integer sum begins with, as a multiple of its sum of numbers: minus what codes
  /// are above their values. With zero points it is the sum itself, for each column to subtract.
  std::int32_t start_factor() const;
  /// What scales are multiplied by: E2M1's codes become twice their values.
  float scale_factor() const { return codes_ == WeightFormat::Codes::fp4 ? 0.5F : 1.0F; }

 private:
  StripLayout strip_;
  std::int64_t in_;
  DigitOrder order_;
  WeightFormat::Codes codes_;
  bool has_zero_points_;
};

/// E2M1's codes become table indices and then bytes so far above twice their values.
constexpr std::int32_t fp4_offset = 12;

/// Rows of x, f32 or bf16.
struct InputRows {
  DType dtype = DType::bf16;
  const void* x = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;  ///< elements between rows
};
/// Writes `rows` of layout.row_bytes() each.
void make_digits(const DigitLayout& layout, const InputRows& rows, std::byte* digits);

}  // namespace sluice::quantized
