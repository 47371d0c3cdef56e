#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "codelets/kernels/quantized/tiles.h"

namespace sluice::quantized {

/// Without vectors: what the others must equal, and what CPUs without any use. From words.
struct PlainKernel {
  static constexpr std::int64_t max_rows = 1;
  static constexpr std::int64_t columns = strip_columns;
  static constexpr std::int64_t chunk_steps = 8;

  static bool exponents_add(const Tile& /*t*/, float /*least*/, float /*most*/) { return false; }

  template <WeightFormat::Codes codes, int Rows, bool Fetch>
  static void tile(const Tile& t) {
    constexpr std::int64_t inputs = codes == WeightFormat::Codes::int8 ? 4 : 8;  // of a word
    std::int64_t index = 0;
    for (std::int64_t step = t.first_step; step < t.end_step; ++index) {
      const std::int64_t steps = std::min(t.block_steps, t.end_step - step);
      const std::int64_t lines = steps * depth_step / inputs;
      const auto* words = reinterpret_cast<const std::uint32_t*>(t.codes + index * t.block_bytes);
      const auto* numbers = reinterpret_cast<const std::int16_t*>(t.digits + 2 * depth_step * step);
      const std::byte* scales = t.row_scales != nullptr
                                    ? t.row_scales
                                    : reinterpret_cast<const std::byte*>(words + lines * columns);
      for (std::int64_t column = 0; column < columns; ++column) {
        std::int32_t sum = 0;
        for (std::int64_t k = 0; k < lines; ++k) {
          sum += sum_of_word<codes>(words[k * columns + column], numbers + k * inputs);
        }
        add_block(t, index, scales, column, sum);
      }
      step += steps;
    }
  }

 private:
  template <WeightFormat::Codes codes>
  static std::int32_t sum_of_word(std::uint32_t word, const std::int16_t* numbers) {
    constexpr int place[4] = {0, 2, 1, 3};
    std::int32_t sum = 0;
    for (int i = 0; i < (codes == WeightFormat::Codes::int8 ? 4 : 8); ++i) {
      std::int32_t code = 0;
      if constexpr (codes == WeightFormat::Codes::int8) {
        code = static_cast<std::int32_t>(word >> 8 * i & 255U);
      } else {
        code = static_cast<std::int32_t>(word >> (8 * (i % 4) + i / 4 * 4) & 15U);
        if constexpr (codes == WeightFormat::Codes::fp4)
          code = code_value(codes, static_cast<std::uint8_t>(code), 0) + fp4_offset;
      }
      sum += code * numbers[i / 4 * 4 + place[i % 4]];
    }
    return sum;
  }
  static void add_block(const Tile& t, std::int64_t index, const std::byte* scales,
                        std::int64_t column, std::int32_t sum) {
    const auto bytes = static_cast<std::int64_t>(size_bytes(t.scale_type));
    std::uint32_t bits = 0;
    std::memcpy(&bits, scales + column * bytes, static_cast<std::size_t>(bytes));
    std::int32_t start = t.starts[index];
    if (t.has_zero_points) {
      start *= -static_cast<std::int32_t>(scales[strip_columns * bytes + column]);
    }
    float* c = t.c + column;
    const float before = t.accumulate || index > 0 ? *c : 0.0F;
    *c = std::fma(static_cast<float>(sum + start),
                  scale_to_float(t.scale_type, bits) * t.scales[index], before);
  }
};

}  // namespace sluice::quantized
