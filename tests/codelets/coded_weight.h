#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "codelets/weights/quantized.h"
#include "codelets/weights/weight_packing.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

/// Random codes, and the values that they stand for.
struct CodedWeight {
  WeightType type;
  std::vector<float> values;  ///< [out, in]
  Buffer packed;

  CodedWeight(Random& random, const WeightFormat& format, std::int64_t in, std::int64_t out)
      : type{in, out, format},
        values(static_cast<std::size_t>(in * out)),
        packed(WeightPacking::size_bytes(type)) {
    const std::int64_t groups = format.num_groups(in);
    constexpr std::int64_t strip_rows = 64;
    for (std::int64_t first = 0; first < out; first += strip_rows) {
      const std::int64_t rows = std::min(strip_rows, out - first);
      const auto draw = [&](std::int64_t count, std::int64_t below) {
        std::vector<std::uint8_t> drawn(static_cast<std::size_t>(count));
        for (std::uint8_t& value : drawn) value = static_cast<std::uint8_t>(random.below(below));
        return drawn;
      };
      const std::int64_t most = format.bits_per_code() == 4 ? 16 : 256;
      std::vector<std::uint8_t> codes = draw(rows * in, most);
      if (format.codes == WeightFormat::Codes::fp8)
        for (std::uint8_t& code : codes) code ^= (code & 0x7fU) == 0x7fU ? 1U : 0U;  // no NaN
      const std::vector<std::uint8_t> zero_points = draw(rows * groups, most);
      std::vector<std::uint32_t> scales(static_cast<std::size_t>(rows * groups));
      for (std::uint32_t& scale : scales) {
        const auto exponent = static_cast<std::uint32_t>(random.below(4));
        switch (format.scales) {
          case WeightFormat::Scales::f16:
            scale = (8 + exponent) << 10 | 0x155U;
            break;
          case WeightFormat::Scales::bf16:
            scale = (118 + exponent) << 7 | 0x35U;
            break;
          case WeightFormat::Scales::e8m0:
            scale = 118 + exponent;
            break;
          default:
            scale = (118 + exponent) << 23 | 0x12345U;
        }
      }
      const quantized::CodedRows coded = {
          .codes = codes.data(),
          .scales = scales.data(),
          .zero_points = format.has_zero_points ? zero_points.data() : nullptr};
      pack_quantized_strip(type, first / strip_rows, coded, packed.data());
      for (std::int64_t i = 0; i < rows * in; ++i) {
        const std::int64_t group =
            i / in * groups + (format.group == 0 ? 0 : i % in / format.group);
        const auto at = static_cast<std::size_t>(group);
        const float scale = scale_to_float(format.scales, scales[at]);
        const std::int32_t zero =
            format.has_zero_points ? zero_points[at] : default_zero_point(format.codes);
        values[static_cast<std::size_t>(first * in + i)] =
            quantized::dequantize(format, codes[static_cast<std::size_t>(i)], zero, scale);
      }
    }
  }
};

}  // namespace sluice::test
