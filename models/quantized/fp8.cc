#include <fmt/format.h>

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

void read(const ConfigReader& fields, QuantizationConfig& config) {
  const std::string scheme = fields.text("activation_scheme", "dynamic");
  if (scheme != "dynamic") {
    fields.refuse("activation_scheme",
                  "\"dynamic\" (activations that are quantised with fixed scales are not "
                  "supported)");
  }
  if (fields.text("fmt", "e4m3") != "e4m3") fields.refuse("fmt", "\"e4m3\"");
  if (!fields.contains("weight_block_size")) {
    // Transformers' default.
  } else if (!fields.equals("weight_block_size", json::array({128, 128}))) {
    fields.refuse("weight_block_size", "[128, 128]");
  }
  const std::string_view key =
      fields.has("modules_to_not_convert") ? "modules_to_not_convert" : "ignored_layers";
  read_unconverted(fields, key, config);
  config.quantizes_activations = true;
  config.schemes.push_back(
      {.format = {.codes = Codes::fp8, .group_rows = 128, .group = 128}, .is_packed = false});
}

std::shared_ptr<const QuantizedTensor> find(const QuantizationConfig& config,
                                            const Checkpoint& checkpoint,
                                            const WeightName& weight) {
  const PartFinder parts(config, checkpoint, weight);
  auto codes = parts.find(".weight");
  if (!codes) return nullptr;
  if (codes->dtype == "BF16" || codes->dtype == "F16" || codes->dtype == "F32") {
    if (const auto scales = parts.find(".weight_scale_inv")) {
      throw Error(
          "{}: tensor {} is there, but the weight beside it is plain (of type {}); get the "
          "file again",
          scales->file, quote(scales->name), codes->dtype);
    }
    return nullptr;
  }
  parts.check_type(*codes, {"F8_E4M3"});
  parts.check_shape(*codes, weight.shape);
  WeightFormat format = config.schemes.front().format;
  const std::int64_t out = weight.shape[0];
  const std::int64_t in = weight.shape[1];
  const std::int64_t num_groups = format.num_groups(in);
  auto stored_scales = parts.need(".weight_scale_inv");
  parts.check_type(stored_scales, scale_types);
  parts.check_shape(stored_scales, {(out + block_rows - 1) / block_rows, num_groups});
  const StoredScales scales(stored_scales, StoredScales::Order::blocks, out, num_groups);
  format.scales = scales.type();
  return std::make_shared<RowsTensor>(weight.part(".weight"), format, weight.shape,
                                      std::vector{*std::move(codes), std::move(stored_scales)},
                                      RowsTensor::Form::bytes, in, scales);
}

}  // namespace

/// DeepSeek's: a scale, called the inverse of one, for each block of 128 x 128.
extern const QuantizationMethod fp8_method = {.name = "fp8",
                                              .read = read,
                                              .scheme_of = linear_scheme_of,
                                              .find = find,
                                              .codes_part = ".weight"};

}  // namespace sluice
