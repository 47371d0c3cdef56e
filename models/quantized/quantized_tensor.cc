#include "models/quantized/quantized_tensor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

/// Where the exponent of a scale has all its bits set, it is NaN or infinite.
std::uint32_t exponent_mask(Scales scales) {
  switch (scales) {
    case Scales::f16:
      return 0x7c00U;
    case Scales::bf16:
      return 0x7f80U;
    case Scales::e8m0:
      return 0xffU;
    default:
      return 0x7f800000U;
  }
}

/// A code's value before its scale is applied.
float value_of(Codes codes, std::uint8_t code, std::int32_t zero_point) {
  if (codes == Codes::fp8) return fp8_to_float(code);
  if (codes != Codes::fp4) return static_cast<float>(code_value(codes, code, zero_point));
  const float magnitude = 0.5F * static_cast<float>(code_value(codes, code & 7U, 0));
  return code < 8 ? magnitude : -magnitude;  // 8 is -0
}

}  // namespace

void CodedRows::resize(const WeightFormat& format, std::int64_t rows, std::int64_t in) {
  const auto groups = static_cast<std::size_t>(rows * format.num_groups(in));
  codes.resize(static_cast<std::size_t>(rows * in));
  scales.resize(groups);
  zero_points.resize(format.has_zero_points ? groups : 0);
}

void CodedRows::add_zero_points(Codes of_codes) {
  if (zero_points.empty())
    zero_points.assign(scales.size(), static_cast<std::uint8_t>(default_zero_point(of_codes)));
}

void dequantize(const WeightFormat& format, std::int64_t in, const CodedRows& coded,
                std::span<float> out) {
  const std::int64_t groups = format.num_groups(in);
  const std::int64_t group = format.group == 0 ? in : format.group;
  const std::int64_t rows = static_cast<std::int64_t>(coded.codes.size()) / in;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto of_group = static_cast<std::size_t>(row * groups + g);
      const float scale = scale_to_float(format.scales, coded.scales[of_group]);
      const std::int32_t zero =
          format.has_zero_points ? coded.zero_points[of_group] : default_zero_point(format.codes);
      const auto first = static_cast<std::size_t>(row * in + g * group);
      const auto last = static_cast<std::size_t>(row * in + std::min(in, (g + 1) * group));
      for (std::size_t i = first; i < last; ++i) {
        const std::uint8_t code = coded.codes[i];
        out[i] = value_of(format.codes, code, zero) * scale;
      }
    }
  }
}

QuantizedTensor::QuantizedTensor(std::string name, WeightFormat format,
                                 std::vector<std::int64_t> shape, std::vector<StoredTensor> parts)
    : name_(std::move(name)),
      file_(parts.front().file),
      format_(format),
      shape_(std::move(shape)),
      parts_(std::move(parts)) {}

void QuantizedTensor::read(std::int64_t first_row, std::int64_t rows, CodedRows& out) const {
  if (first_row < 0 || rows < 0 || first_row > num_rows() - rows) {
    throw Error("{}: rows {} to {} of tensor {} are asked for, it has {}", file_, first_row,
                first_row + rows, quote(name_), num_rows());
  }
  out.resize(format_, rows, in());
  if (rows == 0) return;
  read_rows(first_row, rows, out);
  check_scales(first_row, rows, out.scales);
}

void QuantizedTensor::check_scales(std::int64_t first_row, std::int64_t rows,
                                   const std::vector<std::uint32_t>& scales) const {
  const std::uint32_t mask = exponent_mask(format_.scales);
  const auto bad = std::find_if(scales.begin(), scales.end(),
                                [mask](std::uint32_t bits) { return (bits & mask) == mask; });
  if (bad == scales.end()) return;
  const std::int64_t at = bad - scales.begin();
  const std::int64_t groups = static_cast<std::int64_t>(scales.size()) / rows;
  throw Error(
      "{}: tensor {}: the scale of row {}, group {} is {}, expected a finite number; the file is "
      "damaged, get it again",
      file_, quote(name_), first_row + at / groups, at % groups,
      scale_to_float(format_.scales, *bad));
}

}  // namespace sluice
