#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/quantized/method.h"
#include "models/quantized/module_patterns.h"
#include "models/quantized/rows_tensor.h"
#include "models/quantized/stored_parts.h"

namespace sluice {
namespace {

using nlohmann::json;
using Codes = WeightFormat::Codes;
using ZeroOrder = StoredZeroPoints::Order;

constexpr const char* known_formats =
    "\"pack-quantized\", \"float-quantized\", \"int-quantized\" or \"naive-quantized\"";

// --- config.json

/// Refuses activations with scales that were found when the model was made.
void read_activations(const ConfigReader& scheme, std::string_view key,
                      QuantizationConfig& config) {
  const auto activations = scheme.object(key);
  if (!activations) return;
  if (!activations->equals("dynamic", true)) {
    activations->refuse("dynamic",
                        "true (activations that are quantised with fixed scales are not "
                        "supported; get the model with weights alone quantised)");
  }
  config.quantizes_activations = true;
}

void read_codes(const ConfigReader& weights, std::string_view layout, QuantizationScheme& scheme) {
  const std::string type = weights.text("type", "int");
  const std::int64_t bits = weights.count("num_bits", 8);
  scheme.is_packed = layout == "pack-quantized";
  const bool is_float = type == "float";
  if (!is_float && type != "int") weights.refuse("type", "\"int\" or \"float\"");
  if (is_float ? scheme.is_packed || layout == "int-quantized" : layout == "float-quantized")
    weights.refuse("type", fmt::format("{} in the format {}", is_float ? "\"int\"" : "\"float\"",
                                       quote(layout)));
  if (bits != 8 && (bits != 4 || !scheme.is_packed))
    weights.refuse("num_bits", scheme.is_packed ? "4 or 8" : "8");
  scheme.format.codes = is_float ? Codes::fp8 : bits == 4 ? Codes::int4 : Codes::int8;
  scheme.format.has_zero_points = !weights.flag("symmetric", true);
  if (scheme.format.has_zero_points && (is_float || !scheme.is_packed))
    weights.refuse("symmetric", fmt::format("true in the format {}", quote(layout)));
}

/// Which weights share a scale.
void read_groups(const ConfigReader& weights, QuantizationScheme& scheme) {
  const std::int64_t group =
      weights.count("group_size", 0, std::numeric_limits<std::int32_t>::min());
  const std::string_view by_size = group > 0 ? "group" : group == -1 ? "channel" : "tensor";
  const std::string strategy = weights.text("strategy", by_size);
  const bool is_float = scheme.format.codes == Codes::fp8;
  if (strategy == "channel") return;
  if (strategy == "tensor" && !scheme.is_packed) {
    scheme.has_one_scale = true;
  } else if (strategy == "group" && !is_float) {
    if (group != 32 && group != 64 && group != 128) weights.refuse("group_size", "32, 64 or 128");
    scheme.format.group = static_cast<std::uint16_t>(group);
  } else if (strategy == "block" && is_float) {
    if (!weights.equals("block_structure", json::array({128, 128})) &&
        !weights.equals("block_structure", "128x128"))
      weights.refuse("block_structure", "[128, 128]");
    scheme.format.group_rows = block_rows;
    scheme.format.group = 128;
  } else {
    weights.refuse("strategy", is_float           ? "\"channel\", \"tensor\" or \"block\""
                               : scheme.is_packed ? "\"group\" or \"channel\""
                                                  : "\"group\", \"channel\" or \"tensor\"");
  }
}

void read_scheme(const ConfigReader& fields, const std::string& name, std::string_view format,
                 QuantizationConfig& config) {
  const auto group = fields.object(name);
  if (!group) fields.missing(name);
  QuantizationScheme scheme{.format = {}, .name = name, .targets = group->texts("targets")};
  check_patterns(scheme.targets, fmt::format("{}: {}targets", fields.where(), group->prefix()));
  read_activations(*group, "input_activations", config);
  read_activations(*group, "output_activations", config);
  if (const auto weights = group->object("weights")) {
    const bool has_own = group->has("format");
    const std::string layout = group->text("format", format);
    if (layout != "pack-quantized" && layout != "float-quantized" && layout != "int-quantized" &&
        layout != "naive-quantized") {
      throw Error("{}: {}format is {}, expected {}; get the model in one of them, or in bf16",
                  fields.where(), has_own ? group->prefix() : "quantization_config.",
                  layout.empty() ? "missing" : quote(layout), known_formats);
    }
    if (weights->has("actorder") && !weights->equals("actorder", false) &&
        !weights->equals("actorder", "weight") && !weights->equals("actorder", "static")) {
      weights->refuse("actorder",
                      "\"weight\", \"static\" or nothing (weights whose inputs are in another "
                      "order are not supported)");
    }
    read_codes(*weights, layout, scheme);
    read_groups(*weights, scheme);
  }
  config.schemes.push_back(std::move(scheme));
}

void read(const ConfigReader& fields, QuantizationConfig& config) {
  const std::string format = fields.text("format", "");
  const auto groups = fields.object("config_groups");
  if (!groups) fields.missing("config_groups");
  for (const std::string& name : groups->keys()) read_scheme(*groups, name, format, config);
  config.ignored = fields.texts("ignore");
  check_patterns(config.ignored, fmt::format("{}: {}ignore", fields.where(), fields.prefix()));
  read_activations(fields, "kv_cache_scheme", config);
  if (const auto sparsity = fields.object("sparsity_config");
      sparsity && sparsity->has("format") && !sparsity->equals("format", "dense")) {
    sparsity->refuse("format", "\"dense\" or nothing (sparse weights are not supported)");
  }
  if (fields.has("transform_config") && !fields.equals("transform_config", json::object())) {
    fields.refuse("transform_config", "{} or nothing (rotated weights are not supported)");
  }
}

// --- Tensors

std::int64_t words_of(std::int64_t count, int bits) { return (count * bits + 31) / 32; }

StoredTensor find_codes(const PartFinder& parts, const QuantizationScheme& scheme,
                        const WeightName& weight) {
  const std::int64_t out = weight.shape[0];
  const std::int64_t in = weight.shape[1];
  if (!scheme.is_packed) {
    auto codes = parts.need(".weight");
    parts.check_type(codes, {scheme.format.codes == Codes::fp8 ? "F8_E4M3" : "I8"});
    parts.check_shape(codes, weight.shape);
    return codes;
  }
  auto codes = parts.need(".weight_packed");
  parts.refuse_plain();
  parts.check_type(codes, {"I32"});
  parts.check_shape(codes, {out, words_of(in, scheme.format.bits_per_code())});
  return codes;
}

/// weight_shape, which only repeats what config.json says.
void check_weight_shape(const PartFinder& parts, const WeightName& weight) {
  const auto shape = parts.find(".weight_shape");
  if (!shape) return;
  parts.check_type(*shape, {"I64", "I32"});
  parts.check_shape(*shape, {2});
  std::vector<std::int64_t> values(2);
  for (std::size_t i = 0; i < 2; ++i) {
    if (shape->dtype == "I64") {
      std::memcpy(&values[i], shape->data.data() + 8 * i, 8);
    } else {
      std::int32_t value;
      std::memcpy(&value, shape->data.data() + 4 * i, 4);
      values[i] = value;
    }
  }
  if (values == weight.shape) return;
  throw Error("{}: tensor {} says {}, expected {} as config.json has it; get both again",
              shape->file, quote(shape->name), shape_text(values), shape_text(weight.shape));
}

StoredTensor find_scales(const PartFinder& parts, const QuantizationScheme& scheme,
                         const WeightName& weight, std::int64_t num_groups) {
  auto scales = parts.need(".weight_scale");
  parts.check_type(scales, scale_types);
  const std::int64_t out = weight.shape[0];
  if (scheme.has_one_scale) {
    if (!scales.shape.empty()) parts.check_shape(scales, {1});
  } else if (scheme.format.group_rows != 1) {
    parts.check_shape(scales, {(out + block_rows - 1) / block_rows, num_groups});
  } else {
    parts.check_shape(scales, {out, num_groups});
  }
  return scales;
}

StoredTensor find_zero_points(const PartFinder& parts, const WeightFormat& format,
                              const WeightName& weight, std::int64_t num_groups) {
  auto zero_points = parts.need(".weight_zero_point");
  parts.check_type(zero_points, {"I32", "I8"});
  const std::int64_t out = weight.shape[0];
  const std::int64_t words = words_of(out, format.bits_per_code());
  parts.check_shape(zero_points, {zero_points.dtype == "I8" ? out : words, num_groups});
  return zero_points;
}

std::shared_ptr<const QuantizedTensor> make(const PartFinder& parts,
                                            const QuantizationScheme& scheme,
                                            const WeightName& weight) {
  WeightFormat format = scheme.format;
  const std::int64_t out = weight.shape[0];
  const std::int64_t num_groups = format.num_groups(weight.shape[1]);
  if (format.codes != Codes::fp8) parts.check_group(format);
  if (const auto order = parts.find(".weight_g_idx")) {
    throw Error(
        "{}: tensor {} gives the inputs another order, which is not supported; get the model with "
        "actorder \"weight\" or without",
        order->file, quote(order->name));
  }
  std::vector<StoredTensor> stored = {find_codes(parts, scheme, weight)};
  check_weight_shape(parts, weight);

  stored.push_back(find_scales(parts, scheme, weight, num_groups));
  const auto order = scheme.has_one_scale     ? StoredScales::Order::one
                     : format.group_rows != 1 ? StoredScales::Order::blocks
                                              : StoredScales::Order::rows;
  const StoredScales scales(stored.back(), order, out, num_groups);
  format.scales = scales.type();

  std::optional<StoredZeroPoints> zero_points;
  if (format.has_zero_points) {
    stored.push_back(find_zero_points(parts, format, weight, num_groups));
    zero_points.emplace(
        stored.back(), stored.back().dtype == "I8" ? ZeroOrder::signed_bytes : ZeroOrder::row_words,
        format.codes, out, num_groups);
    format.has_zero_points = !zero_points->are_default();
  }
  const std::int64_t row_bytes =
      scheme.is_packed ? 4 * words_of(weight.shape[1], format.bits_per_code()) : weight.shape[1];
  const auto form = !scheme.is_packed && format.codes == Codes::int8
                        ? RowsTensor::Form::signed_bytes
                    : format.codes == Codes::int4 ? RowsTensor::Form::nibbles
                                                  : RowsTensor::Form::bytes;
  return std::make_shared<RowsTensor>(weight.part(".weight"), format, weight.shape,
                                      std::move(stored), form, row_bytes, scales, zero_points);
}

std::shared_ptr<const QuantizedTensor> find(const QuantizationConfig& config,
                                            const Checkpoint& checkpoint,
                                            const WeightName& weight) {
  const PartFinder parts(config, checkpoint, weight);
  const QuantizationScheme* scheme = scheme_of(config, weight.module, weight.module_class);
  if (scheme != nullptr && !scheme->format.is_plain()) return make(parts, *scheme, weight);
  if (const auto packed = parts.find(".weight_packed")) {
    throw Error(
        "{}: tensor {} is packed, but quantization_config leaves {} out (targets, ignore); get "
        "both files again",
        packed->file, quote(packed->name), quote(weight.module));
  }
  return nullptr;
}

}  // namespace

/// What llm-compressor writes, and `sluice quantize`.
extern const QuantizationMethod compressed_tensors_method = {.name = "compressed-tensors",
                                                             .read = read,
                                                             .scheme_of = scheme_of,
                                                             .find = find,
                                                             .codes_part = ".weight_packed"};

}  // namespace sluice
