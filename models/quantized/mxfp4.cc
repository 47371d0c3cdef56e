#include "models/quantized/mxfp4.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "models/quantized/module_patterns.h"
#include "models/quantized/rows_tensor.h"
#include "models/quantized/stored_parts.h"
#include "models/stacked_tensor.h"

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

/// Blocks of any number of rows, and their scales, which are checked.
struct Stored {
  StoredTensor blocks;
  StoredTensor scales;
  std::vector<std::int64_t> shape;  ///< [rows, inputs]
};

std::optional<Stored> find_stored(const PartFinder& parts) {
  auto blocks = parts.find(codes_part);
  if (!blocks) return std::nullopt;
  auto shape = weight_shape(*blocks);
  auto scales = parts.need("_scales");
  parts.check_type(scales, {"U8"});
  const std::vector<std::int64_t> expected(blocks->shape.begin(), blocks->shape.end() - 1);
  if (scales.shape != expected) {
    throw Error("{}: tensor {} has shape {}, expected {}: a scale for each of the blocks",
                scales.file, quote(scales.name), shape_text(scales.shape), shape_text(expected));
  }
  return Stored{*std::move(blocks), std::move(scales), std::move(shape)};
}

/// What it has of one expert.
StoredTensor of_expert(StoredTensor all, std::int64_t expert) {
  const std::size_t bytes = all.data.size() / static_cast<std::size_t>(all.shape.front());
  all.data = all.data.subspan(static_cast<std::size_t>(expert) * bytes, bytes);
  all.shape.erase(all.shape.begin());
  return all;
}

/// A part of the weights of all experts: rows of an expert's, as codes are never transposed.
std::shared_ptr<const QuantizedTensor> find_part(const QuantizationConfig& config,
                                                 const Checkpoint& checkpoint,
                                                 const WeightName& weight) {
  const StackedPart& part = *weight.stacked;
  const WeightName stack = {.module = part.stack, .module_class = {}, .shape = {}};
  auto stored = find_stored(PartFinder(config, checkpoint, stack));
  if (!stored) return nullptr;
  if (const auto plain = checkpoint.find_stored(part.stack)) {
    throw Error("{}: tensor {} is there both plain and quantised ({}); remove one of them",
                plain->file, quote(plain->name), config.method);
  }
  const StoredTensor& blocks = stored->blocks;
  const std::int64_t rows = part.step * weight.shape[0];
  const std::int64_t groups = format.num_groups(weight.shape[1]);
  const std::vector<std::int64_t> expected = {weight.num_experts, rows, groups, group_bytes};
  if (blocks.shape != expected || stored->shape[1] != weight.shape[1]) {
    throw Error(
        "{}: tensor {} has shape {}, expected {}: {} experts, each of {} rows by {} inputs as "
        "config.json has it",
        blocks.file, quote(blocks.name), shape_text(blocks.shape), shape_text(expected),
        weight.num_experts, rows, weight.shape[1]);
  }
  std::vector parts = {of_expert(stored->blocks, part.expert),
                       of_expert(stored->scales, part.expert)};
  const StoredScales scales(parts.back(), StoredScales::Order::rows, rows, groups);
  return std::make_shared<RowsTensor>(
      part_name(part, false), format, weight.shape, std::move(parts), RowsTensor::Form::nibbles,
      weight.shape[1] / 2, scales, RowsTensor::Rows{part.first, part.step});
}

std::shared_ptr<const QuantizedTensor> find(const QuantizationConfig& config,
                                            const Checkpoint& checkpoint,
                                            const WeightName& weight) {
  auto found = open_mxfp4(config, checkpoint, weight.module);
  if (!found) return weight.stacked ? find_part(config, checkpoint, weight) : nullptr;
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
  auto stored = find_stored(parts);
  if (!stored) return nullptr;
  const auto& shape = stored->shape;
  const StoredScales scales(stored->scales, StoredScales::Order::rows, shape[0], shape[1] / group);
  return std::make_shared<RowsTensor>(
      name, format, shape, std::vector{std::move(stored->blocks), std::move(stored->scales)},
      RowsTensor::Form::nibbles, shape[1] / 2, scales);
}

/// gpt-oss's, whose weights are an MoE family's.
extern const QuantizationMethod mxfp4_method = {.name = "mxfp4",
                                                .read = read,
                                                .scheme_of = linear_scheme_of,
                                                .find = find,
                                                .codes_part = codes_part};

}  // namespace sluice
