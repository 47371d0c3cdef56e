#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
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

// --- config.json

/// Rules for single modules: those that begin with "-:" leave one out, which the files show.
void read_dynamic(const ConfigReader& fields) {
  const auto rules = fields.object("dynamic");
  if (!rules) return;
  for (const std::string& rule : rules->keys()) {
    if (!rule.starts_with("-:"))
      rules->refuse(rule, "no bits and groups for single modules (\"-:\" rules are supported)");
  }
}

void read(const ConfigReader& fields, QuantizationConfig& config) {
  const std::int64_t bits = fields.count("bits");
  if (bits != 4 && bits != 8) fields.refuse("bits", "4 or 8");
  const std::int64_t group =
      fields.count("group_size", 128, std::numeric_limits<std::int32_t>::min());
  if (group != -1 && group != 32 && group != 64 && group != 128)
    fields.refuse("group_size", "32, 64, 128 or -1");
  if (fields.flag("desc_act", false)) {
    fields.refuse("desc_act",
                  "false (weights whose inputs are in the order of activations are not supported; "
                  "get the model without)");
  }
  const std::string_view key = fields.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = fields.text(key, "gptq");
  if (format != "gptq" && format != "gptq_v2") fields.refuse(key, "\"gptq\" or \"gptq_v2\"");
  config.zero_points_less_one = format == "gptq";
  read_dynamic(fields);
  config.quantizes_head = fields.flag("lm_head", false);
  read_unconverted(fields, "modules_to_not_convert", config);
  config.schemes.push_back(
      {.format = {.codes = bits == 4 ? Codes::int4 : Codes::int8,
                  .has_zero_points = true,
                  .group = static_cast<std::uint16_t>(group == -1 ? 0 : group)}});
}

// --- Tensors

/// The eight codes of a word as the bytes of one: the first in the lowest.
std::uint64_t spread_nibbles(std::uint32_t word) {
  std::uint64_t bytes = word;
  bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffU;
  bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ffU;
  return (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0fU;
}

/// Words [in * bits / 32, out], each of the codes of neighbouring inputs.
class GptqTensor : public QuantizedTensor {
 public:
  GptqTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
             std::vector<StoredTensor> parts, StoredScales scales, StoredZeroPoints zero_points)
      : QuantizedTensor(std::move(name), format, std::move(shape), std::move(parts)),
        scales_(scales),
        zero_points_(zero_points) {}

 private:
  static constexpr std::int64_t tile = 64;

  void read_rows(std::int64_t first_row, std::int64_t rows, CodedRows& out) const override {
    for (std::int64_t row = 0; row < rows; row += tile) {
      for (std::int64_t i = 0; i < in(); i += tile) {
        read_tile(first_row + row, std::min(tile, rows - row), i, std::min(tile, in() - i),
                  out.codes.data() + row * in() + i);
      }
    }
    scales_.read(first_row, rows, out.scales);
    if (format().has_zero_points) zero_points_.read(first_row, rows, out.zero_points);
  }

  /// Codes of some rows and inputs, turned in a small buffer: rows of a weight are often so far
  /// apart that their lines would push each other out of a core's first cache.
  void read_tile(std::int64_t first_row, std::int64_t rows, std::int64_t first, std::int64_t inputs,
                 std::uint8_t* out) const {
    std::array<std::uint8_t, tile * tile> turned;
    const bool is_int4 = format().codes == Codes::int4;
    const std::int64_t in_word = is_int4 ? 8 : 4;
    const std::byte* words = parts().front().data.data();
    for (std::int64_t i = 0; i < inputs; i += in_word) {
      const std::byte* from = words + ((first + i) / in_word * num_rows() + first_row) * 4;
      std::uint8_t* to = turned.data() + i;
      for (std::int64_t row = 0; row < rows; ++row, from += 4, to += tile) {
        std::uint32_t word;
        std::memcpy(&word, from, sizeof word);
        if (is_int4) {
          const std::uint64_t codes = spread_nibbles(word);
          std::memcpy(to, &codes, sizeof codes);
        } else {
          std::memcpy(to, &word, sizeof word);
        }
      }
    }
    for (std::int64_t row = 0; row < rows; ++row)
      std::memcpy(out + row * in(), turned.data() + row * tile, static_cast<std::size_t>(inputs));
  }

  StoredScales scales_;
  StoredZeroPoints zero_points_;
};

/// g_idx gives each input its group; without desc_act they follow each other.
void check_order(const PartFinder& parts, const WeightName& weight, std::int64_t group) {
  const auto order = parts.find(".g_idx");
  if (!order) return;
  parts.check_type(*order, {"I32"});
  parts.check_shape(*order, {weight.shape[1]});
  for (std::int64_t i = 0; i < weight.shape[1]; ++i) {
    std::int32_t of_input;
    std::memcpy(&of_input, order->data.data() + 4 * i, sizeof of_input);
    if (of_input == i / group) continue;
    throw Error(
        "{}: tensor {}: input {} is in group {}, expected {}: the inputs are in another order "
        "(desc_act), which is not supported; get the model with desc_act false",
        order->file, quote(order->name), i, of_input, i / group);
  }
}

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
  const std::int64_t in_word = 32 / format.bits_per_code();
  parts.check_group(format);
  if (in % in_word != 0 || out % in_word != 0) {
    throw Error("{}: {} is of shape {}, expected multiples of {}, as {} packs them", codes->file,
                quote(weight.part(".weight")), shape_text(weight.shape), in_word, config.method);
  }
  parts.check_type(*codes, {"I32"});
  parts.check_shape(*codes, {in / in_word, out});
  check_order(parts, weight, format.group == 0 ? in : format.group);

  ColumnParts found =
      find_column_parts(parts, weight, format, StoredZeroPoints::Order::column_words);
  if (config.zero_points_less_one) found.zero_points.add_one();
  format.scales = found.scales.type();
  format.has_zero_points = !found.zero_points.are_default();
  return std::make_shared<GptqTensor>(
      weight.part(".weight"), format, weight.shape,
      std::vector{*std::move(codes), std::move(found.scales_tensor), std::move(found.zeros_tensor)},
      found.scales, found.zero_points);
}

}  // namespace

/// What AutoGPTQ, GPTQModel and optimum write.
extern const QuantizationMethod gptq_method = {.name = "gptq",
                                               .read = read,
                                               .scheme_of = linear_scheme_of,
                                               .find = find,
                                               .codes_part = codes_part};

}  // namespace sluice
