#pragma once

#include <cstdint>
#include <span>

#include "models/quantized/quantized_tensor.h"

namespace sluice {

/// How a group's scale is chosen.
enum class ScaleSearch : std::uint8_t {
  none,  ///< by its largest value alone, as below
  mse,   ///< of these and multiples of it, 0.7 to 1.15, the one of the least squared error
};

/// Throws Error for a format that quantize_rows() does not make.
void check_quantizes_to(const WeightFormat& format);

/// Quantises rows of W: `rows` [num_rows][in] becomes `out`. A pure function of its arguments; rows
/// do not depend on each other, but for blocks of 128, whose first row must be a block's.
///
/// With m the value of a group (or block) that is largest in magnitude, and the scale rounded to
/// the format's type before codes are taken with it:
///   int4   scale = m / -8, code = clamp(round(w / scale), -8, 7) + 8. This is GGUF's Q4_0, so that
///          its blocks can carry the codes of int4-g32; m itself is met exactly, and scales may be
///          negative. The squared error is three quarters of that of |m| / 7.
///   int8   scale = |m| / 127, code = clamp(round(w / scale), -128, 127) + 128: GGUF's Q8_0
///   z      scale = (max(w, 0) - min(w, 0)) / 15 or 255, zero = round(-min / scale),
///          code = clamp(round(w / scale) + zero, 0, 15 or 255)
///   fp8    scale = |m| / 448, code = the nearest of w / scale
/// round() takes ties to even. A scale of 0 gives codes whose value is 0.
///
/// Throws Error: values that are no finite numbers (row and input are named, counted from
/// `first_row`), a scale that its type cannot hold, a format without codes of these.
void quantize_rows(const WeightFormat& format, std::int64_t in, std::span<const float> rows,
                   ScaleSearch search, CodedRows& out, std::int64_t first_row = 0);

/// Sum of squared differences of rows and what their codes stand for.
double squared_error(const WeightFormat& format, std::int64_t in, std::span<const float> rows,
                     const CodedRows& coded);

}  // namespace sluice
