#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/weight_format.h"
#include "codelets/kernels/strip_gemm.h"

/// Weights as codes of 4 and 8 bits: how they lie in memory, and what multiplies them.
namespace sluice::quantized {

/// A strip's depth is padded to a multiple of so many inputs: what kernels read at a turn.
constexpr std::int64_t depth_step = 32;
/// Inputs whose products are summed as integers at once, at most: so a sum fits into 32 bits.
constexpr std::int64_t max_block = 128;

/// Where the parts of a strip lie: 64 columns (rows of W [out, in]) of a weight `in` deep.
///
///   for each group of inputs that share a scale:
///     codes        of 4 bits [inputs / 8][64][4 bytes], low nibbles inputs 0 to 3, high ones 4 to
///     7
///                  of 8 bits [inputs / 4][64][4 bytes]
///     scales       [64] in the format's type
///     zero points  [64] bytes, where the format has them
///
/// Whole cache lines each. The last group may have fewer inputs, a multiple of depth_step.
class StripLayout {
 public:
  /// `format` has codes: int4, int8, fp4 or fp8, in groups of 0, 32, 64 or 128 inputs.
  constexpr StripLayout(const WeightFormat& format, std::int64_t in)
      : code_bits_(format.bits_per_code()),
        depth_((in + depth_step - 1) / depth_step * depth_step),
        group_(format.group == 0 ? depth_ : format.group),
        scale_bytes_(strip_columns * static_cast<std::int64_t>(sluice::size_bytes(format.scales))),
        zero_point_bytes_(format.has_zero_points ? strip_columns : 0) {}

  constexpr std::int64_t depth() const { return depth_; }  ///< inputs, with the padding
  constexpr std::int64_t group() const { return group_; }  ///< inputs of all groups but the last
  constexpr std::int64_t num_groups() const { return (depth_ + group_ - 1) / group_; }
  /// Inputs that a block of integer sums is for: of a group all, or a part of them.
  constexpr std::int64_t block() const { return std::min(group_, max_block); }
  constexpr std::int64_t num_blocks() const { return (depth_ + block() - 1) / block(); }
  constexpr std::int64_t group_depth(std::int64_t index) const {
    return std::min(group_, depth_ - index * group_);
  }

  constexpr std::int64_t code_bytes(std::int64_t inputs) const {
    return inputs * strip_columns * code_bits_ / 8;
  }
  /// From one group's start to the next one's.
  constexpr std::int64_t group_bytes() const {
    return code_bytes(group_) + scale_bytes_ + zero_point_bytes_;
  }
  constexpr std::int64_t scales_offset(std::int64_t index) const {
    return index * group_bytes() + code_bytes(group_depth(index));
  }
  constexpr std::int64_t zero_points_offset(std::int64_t index) const {
    return scales_offset(index) + scale_bytes_;
  }
  constexpr std::int64_t scale_bytes() const { return scale_bytes_; }
  constexpr std::int64_t size_bytes() const {
    return zero_points_offset(num_groups() - 1) + zero_point_bytes_;
  }

 private:
  std::int64_t code_bits_, depth_, group_, scale_bytes_, zero_point_bytes_;
};

/// Bytes of a strip, a multiple of 64.
constexpr std::size_t strip_bytes(const WeightFormat& format, std::int64_t in) {
  return static_cast<std::size_t>(StripLayout(format, in).size_bytes());
}

/// Up to 64 rows of W as codes, a byte each, whatever their bits.
struct CodedRows {
  const std::uint8_t* codes = nullptr;        ///< [columns, in]
  const std::uint32_t* scales = nullptr;      ///< [columns, groups], a scale's bits each
  const std::uint8_t* zero_points = nullptr;  ///< [columns, groups]; null: the format has none
};
/// Writes all of a strip of strip_bytes(), 64-byte aligned; what is padding is zero.
void pack_strip(const WeightFormat& format, const CodedRows& rows, std::int64_t columns,
                std::int64_t in, std::byte* strip);

struct MutableCodedRows {
  std::uint8_t* codes = nullptr;
  std::uint32_t* scales = nullptr;
  std::uint8_t* zero_points = nullptr;
};
/// The reverse of pack_strip().
void unpack_codes(const WeightFormat& format, const std::byte* strip, std::int64_t columns,
                  std::int64_t in, const MutableCodedRows& rows);
/// W [columns, in] as numbers: a code's value by its scale, rounded to f32 once.
void unpack_strip(const WeightFormat& format, const std::byte* strip, std::int64_t columns,
                  std::int64_t in, float* values);

/// A code as a number: its value by its scale.
constexpr float dequantize(const WeightFormat& format, std::uint8_t code, std::int32_t zero_point,
                           float scale) {
  switch (format.codes) {
    case WeightFormat::Codes::fp8:
      return fp8_to_float(code) * scale;
    case WeightFormat::Codes::fp4:
      return static_cast<float>(code_value(format.codes, code, 0)) * 0.5F * scale;
    default:
      return static_cast<float>(code_value(format.codes, code, zero_point)) * scale;
  }
}

}  // namespace sluice::quantized
