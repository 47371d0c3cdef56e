#include "codelets/kernels/quantized/strip.h"

#include <array>
#include <cstring>

namespace sluice::quantized {
namespace {

/// Inputs of one code word of 32 bits a column.
constexpr std::int64_t word_inputs(const WeightFormat& format) {
  return 32 / format.bits_per_code();
}

/// A column's codes of one word, from a byte each.
std::uint32_t pack_word(const std::uint8_t* codes, std::int64_t inputs) {
  std::uint32_t low = 0;
  std::memcpy(&low, codes, sizeof(low));
  if (inputs == 4) return low;
  std::uint32_t high = 0;
  std::memcpy(&high, codes + 4, sizeof(high));
  return low | high << 4;
}
void unpack_word(std::uint32_t word, std::int64_t inputs, std::uint8_t* codes) {
  const std::array<std::uint32_t, 2> halves = {inputs == 4 ? word : word & 0x0f0f0f0fU,
                                               word >> 4 & 0x0f0f0f0fU};
  std::memcpy(codes, halves.data(), static_cast<std::size_t>(inputs));
}

void store_scale(std::byte* scales, std::size_t bytes, std::int64_t column, std::uint32_t bits) {
  std::memcpy(scales + static_cast<std::size_t>(column) * bytes, &bits, bytes);
}
std::uint32_t load_scale(const std::byte* scales, std::size_t bytes, std::int64_t column) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, scales + static_cast<std::size_t>(column) * bytes, bytes);
  return bits;
}

/// The words of a group, of each column up to a cache line of codes after the other.
void pack_codes(const CodedRows& rows, std::int64_t columns, std::int64_t in, std::int64_t first,
                std::int64_t depth, std::int64_t inputs, std::byte* to) {
  constexpr std::int64_t line = 64;
  std::memset(to, 0, static_cast<std::size_t>(depth / inputs * strip_columns * 4));
  auto* words = reinterpret_cast<std::uint32_t*>(to);
  const std::int64_t end = std::min(in, first + depth);
  for (std::int64_t part = first; part < end; part += line) {
    const std::int64_t count = std::min(line, end - part);
    for (std::int64_t column = 0; column < columns; ++column) {
      std::array<std::uint8_t, line> codes{};
      std::memcpy(codes.data(), rows.codes + column * in + part, static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; i += inputs) {
        words[(part - first + i) / inputs * strip_columns + column] =
            pack_word(codes.data() + i, inputs);
      }
    }
  }
}

/// Calls `use(column, input, code, group)` for each code of a strip.
template <class Use>
void for_each_code(const WeightFormat& format, const std::byte* strip, std::int64_t columns,
                   std::int64_t in, Use&& use) {
  const StripLayout layout(format, in);
  const std::int64_t inputs = word_inputs(format);
  for (std::int64_t group = 0; group < layout.num_groups(); ++group) {
    const auto* words =
        reinterpret_cast<const std::uint32_t*>(strip + group * layout.group_bytes());
    const std::int64_t first = group * layout.group();
    const std::int64_t end = std::min(in, first + layout.group_depth(group));
    for (std::int64_t at = first; at < end; at += inputs) {
      for (std::int64_t column = 0; column < columns; ++column) {
        std::array<std::uint8_t, 8> codes{};
        unpack_word(words[(at - first) / inputs * strip_columns + column], inputs, codes.data());
        for (std::int64_t i = at; i < std::min(end, at + inputs); ++i) {
          use(column, i, codes[static_cast<std::size_t>(i - at)], group);
        }
      }
    }
  }
}

}  // namespace

void pack_strip(const WeightFormat& format, const CodedRows& rows, std::int64_t columns,
                std::int64_t in, std::byte* strip) {
  const StripLayout layout(format, in);
  const std::int64_t groups = layout.num_groups();
  const std::size_t each = size_bytes(format.scales);
  for (std::int64_t group = 0; group < groups; ++group) {
    pack_codes(rows, columns, in, group * layout.group(), layout.group_depth(group),
               word_inputs(format), strip + group * layout.group_bytes());
    std::byte* scales = strip + layout.scales_offset(group);
    std::memset(scales, 0, static_cast<std::size_t>(layout.scale_bytes()));
    for (std::int64_t column = 0; column < columns; ++column) {
      store_scale(scales, each, column, rows.scales[column * groups + group]);
    }
    if (!format.has_zero_points) continue;
    auto* zeros = reinterpret_cast<std::uint8_t*>(strip + layout.zero_points_offset(group));
    std::memset(zeros, 0, strip_columns);
    for (std::int64_t column = 0; column < columns; ++column) {
      zeros[column] = rows.zero_points[column * groups + group];
    }
  }
}

void unpack_codes(const WeightFormat& format, const std::byte* strip, std::int64_t columns,
                  std::int64_t in, const MutableCodedRows& rows) {
  const StripLayout layout(format, in);
  const std::int64_t groups = layout.num_groups();
  for_each_code(format, strip, columns, in,
                [&](std::int64_t column, std::int64_t i, std::uint8_t code,
                    std::int64_t /*group*/) { rows.codes[column * in + i] = code; });
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::byte* scales = strip + layout.scales_offset(group);
    const std::byte* zeros = strip + layout.zero_points_offset(group);
    for (std::int64_t column = 0; column < columns; ++column) {
      rows.scales[column * groups + group] = load_scale(scales, size_bytes(format.scales), column);
      if (format.has_zero_points) {
        rows.zero_points[column * groups + group] = static_cast<std::uint8_t>(zeros[column]);
      }
    }
  }
}

void unpack_strip(const WeightFormat& format, const std::byte* strip, std::int64_t columns,
                  std::int64_t in, float* values) {
  const StripLayout layout(format, in);
  for_each_code(format, strip, columns, in,
                [&](std::int64_t column, std::int64_t i, std::uint8_t code, std::int64_t group) {
                  const float scale =
                      scale_to_float(format.scales, load_scale(strip + layout.scales_offset(group),
                                                               size_bytes(format.scales), column));
                  const std::int32_t zero_point =
                      format.has_zero_points ? static_cast<std::int32_t>(
                                                   strip[layout.zero_points_offset(group) + column])
                                             : default_zero_point(format.codes);
                  values[column * in + i] = dequantize(format, code, zero_point, scale);
                });
}

}  // namespace sluice::quantized
