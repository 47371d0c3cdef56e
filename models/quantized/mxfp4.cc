#include "models/quantized/mxfp4.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/quantized/module_patterns.h"
#include "models/quantized/rows_tensor.h"
#include "models/quantized/stored_parts.h"

namespace sluice {
namespace {

constexpr std::int64_t group = 32;
constexpr std::int64_t group_bytes = 16;
constexpr std::string_view codes_part = "_blocks";

constexpr WeightFormat format = {
    .codes = WeightFormat::Codes::fp4, .scales = WeightFormat::Scales::e8m0, .group = group};

void read(const ConfigReader& fields, QuantizationConfig& config) {
  read_unconverted(fields, "modules_to_not_convert", config);
  config.schemes.push_back({.format = format});
}

/// [out, in] of blocks, whatever dimensions stand in front of a row's groups.
std::vector<std::int64_t> weight_shape(const StoredTensor& blocks) {
  const auto& shape = blocks.shape;
  if (shape.size() < 3 || shape.back() != group_bytes || blocks.dtype != "U8" ||
      blocks.data.empty()) {
    throw Error("{}: tensor {} is {} of {}, expected [..., rows, groups, {}] of U8 (mxfp4)",
                blocks.file, quote(blocks.name), shape_text(shape), quote(blocks.dtype),
                group_bytes);
  }
  const std::int64_t groups = shape[shape.size() - 2];
  return {static_cast<std::int64_t>(blocks.data.size()) / group_bytes / groups, groups * group};
}

std::shared_ptr<const QuantizedTensor> find(const QuantizationConfig& config,
                                            const Checkpoint& checkpoint,
                                            const WeightName& weight) {
  auto found = open_mxfp4(config, checkpoint, weight.module);
  if (!found) return nullptr;
  const PartFinder parts(config, checkpoint, weight);
  parts.refuse_plain();
  if (found->shape() != weight.shape) {
    throw Error("{}: tensor {} is a weight of {}, expected {} as config.json has it", found->file(),
                quote(found->name()), shape_text(found->shape()), shape_text(weight.shape));
  }
  return found;
}

}  // namespace

std::shared_ptr<const QuantizedTensor> open_mxfp4(const QuantizationConfig& config,
                                                  const Checkpoint& checkpoint,
                                                  const std::string& name) {
  const WeightName weight = {.module = name, .module_class = {}, .shape = {}};
  const PartFinder parts(config, checkpoint, weight);
  auto blocks = parts.find(codes_part);
  if (!blocks) return nullptr;
  const auto shape = weight_shape(*blocks);
  auto scales = parts.need("_scales");
  parts.check_type(scales, {"U8"});
  const std::vector<std::int64_t> expected(blocks->shape.begin(), blocks->shape.end() - 1);
  if (scales.shape != expected) {
    throw Error("{}: tensor {} has shape {}, expected {}: a scale for each of the blocks",
                scales.file, quote(scales.name), shape_text(scales.shape), shape_text(expected));
  }
  const StoredScales stored(scales, StoredScales::Order::rows, shape[0], shape[1] / group);
  return std::make_shared<RowsTensor>(name, format, shape,
                                      std::vector{*std::move(blocks), std::move(scales)},
                                      RowsTensor::Form::nibbles, shape[1] / 2, stored);
}

/// gpt-oss's, whose weights are an MoE family's.
extern const QuantizationMethod mxfp4_method = {.name = "mxfp4",
                                                .read = read,
                                                .scheme_of = linear_scheme_of,
                                                .find = find,
                                                .codes_part = codes_part};

}  // namespace sluice
