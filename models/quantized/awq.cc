#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/quantized/method.h"
#include "models/quantized/module_patterns.h"
#include "models/quantized/stored_parts.h"

namespace sluice {
namespace {

using Codes = WeightFormat::Codes;

constexpr std::string_view codes_part = ".qweight";
constexpr std::int64_t columns_in_word = 8;

// --- config.json

void read(const ConfigReader& fields, QuantizationConfig& config) {
  const std::string_view bits = fields.has("w_bit") ? "w_bit" : "bits";
  if (fields.count(bits, 4) != 4) fields.refuse(bits, "4");
  const std::string_view size = fields.has("q_group_size") ? "q_group_size" : "group_size";
  const std::int64_t group = fields.count(size, 128, std::numeric_limits<std::int32_t>::min());
  if (group != -1 && group != 32 && group != 64 && group != 128)
    fields.refuse(size, "32, 64, 128 or -1");
  const std::string_view key = fields.has("version") ? "version" : "format";
  const std::string version = fields.text(key, "gemm");
  if (version != "gemm" && version != "GEMM")
    fields.refuse(key, "\"gemm\" (other orders of AWQ's words are not supported)");
  if (!fields.flag("zero_point", true)) fields.refuse("zero_point", "true");
  read_unconverted(fields, "modules_to_not_convert", config);
  config.schemes.push_back(
      {.format = {.codes = Codes::int4,
                  .has_zero_points = true,
                  .group = static_cast<std::uint16_t>(group == -1 ? 0 : group)}});
}

// --- Tensors

/// Words [in, out / 8], each of the codes of eight outputs in AWQ's order.
class AwqTensor : public QuantizedTensor {
 public:
  AwqTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
            std::vector<StoredTensor> parts, StoredScales scales, StoredZeroPoints zero_points)
      : QuantizedTensor(std::move(name), format, std::move(shape), std::move(parts)),
        scales_(scales),
        zero_points_(zero_points) {}

 private:
  static constexpr std::int64_t tile = 64;

  void read_rows(std::int64_t first_row, std::int64_t rows, CodedRows& out) const override {
    for (std::int64_t row = 0; row < rows;) {
      // Up to the end of a word, so that the next tile begins with one.
      const std::int64_t end = (first_row + row + tile) / columns_in_word * columns_in_word;
      const std::int64_t some = std::min(end - first_row, rows) - row;
      for (std::int64_t i = 0; i < in(); i += tile) {
        read_tile(first_row + row, some, i, std::min(tile, in() - i),
                  out.codes.data() + row * in() + i);
      }
      row += some;
    }
    scales_.read(first_row, rows, out.scales);
    if (format().has_zero_points) zero_points_.read(first_row, rows, out.zero_points);
  }

  /// Codes of some rows and inputs, turned in a small buffer: rows of a weight are often so far
  /// apart that their lines would push each other out of a core's first cache.
  void read_tile(std::int64_t first_row, std::int64_t rows, std::int64_t first, std::int64_t inputs,
                 std::uint8_t* out) const {
    std::array<std::uint8_t, (tile + columns_in_word) * tile> turned;
    const std::int64_t row_words = num_rows() / columns_in_word;
    const std::int64_t skipped = first_row % columns_in_word;  // of the first word
    const std::byte* from =
        parts().front().data.data() + (first * row_words + first_row / columns_in_word) * 4;
    for (std::int64_t i = 0; i < inputs; ++i, from += row_words * 4) {
      for (std::int64_t row = 0; row < skipped + rows; row += columns_in_word) {
        std::uint32_t word;
        std::memcpy(&word, from + row / columns_in_word * 4, sizeof word);
        for (std::int64_t k = 0; k < columns_in_word; ++k) {
          turned[static_cast<std::size_t>((row + k) * tile + i)] =
              static_cast<std::uint8_t>(word >> (4 * awq_place[k]) & 15U);
        }
      }
    }
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(out + row * in(), turned.data() + (skipped + row) * tile,
                  static_cast<std::size_t>(inputs));
  }

  StoredScales scales_;
  StoredZeroPoints zero_points_;
};

std::shared_ptr<const QuantizedTensor> find(const QuantizationConfig& config,
                                            const Checkpoint& checkpoint,
                                            const WeightName& weight) {
  const PartFinder parts(config, checkpoint, weight);
  auto codes = parts.find(codes_part);
  if (!codes) return nullptr;
  parts.refuse_plain();
  WeightFormat format = config.schemes.front().format;
  const std::int64_t out = weight.shape[0];
  const std::int64_t in = weight.shape[1];
  parts.check_group(format);
  if (out % columns_in_word != 0) {
    throw Error("{}: {} has {} outputs, expected a multiple of {}, as {} packs them", codes->file,
                quote(weight.part(".weight")), out, columns_in_word, config.method);
  }
  parts.check_type(*codes, {"I32"});
  parts.check_shape(*codes, {in, out / columns_in_word});

  ColumnParts found = find_column_parts(parts, weight, format, StoredZeroPoints::Order::awq_words);
  format.scales = found.scales.type();
  format.has_zero_points = !found.zero_points.are_default();
  return std::make_shared<AwqTensor>(
      weight.part(".weight"), format, weight.shape,
      std::vector{*std::move(codes), std::move(found.scales_tensor), std::move(found.zeros_tensor)},
      found.scales, found.zero_points);
}

}  // namespace

/// What AutoAWQ and GPTQModel write.
extern const QuantizationMethod awq_method = {.name = "awq",
                                              .read = read,
                                              .scheme_of = linear_scheme_of,
                                              .find = find,
                                              .codes_part = codes_part};

}  // namespace sluice
