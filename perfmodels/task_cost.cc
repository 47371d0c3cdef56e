#include "perfmodels/task_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>

#include "perfmodels/hot_experts.h"
#include "perfmodels/layer_cost.h"

namespace sluice {
namespace {

std::int64_t mean(std::int64_t sum, std::int64_t count) { return (sum + count - 1) / count; }

/// Nothing that runs takes less.
constexpr double shortest_s = 1e-6;

const LayerHomes* homes_of(const TaskTag& tag, const MemoryPlan* memory) {
  const auto layer = static_cast<std::size_t>(tag.layer);
  const bool is_known = memory != nullptr && tag.layer >= 0 && layer < memory->layers.size();
  return is_known ? &memory->layers[layer] : nullptr;
}

bool are_same(const LayerHomes* a, const LayerHomes* b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}

bool writes_to_disk(const TaskTag& tag, const MemoryPlan* memory) {
  const LayerHomes* homes = homes_of(tag, memory);
  return tag.sublayer == Sublayer::kv_store && homes != nullptr && homes->kv == Tier::disk;
}

/// The memory that a device reads a sublayer's weight or KV from.
Tier operand_tier(const TaskTag& tag, Sublayer sublayer, Device device, const MemoryPlan* memory) {
  const LayerHomes* homes = homes_of(tag, memory);
  if (homes == nullptr) return own_tier(device);
  const std::span<const WeightKind> weights = weights_of(sublayer);
  const Tier home = weights.empty() ? homes->kv : (*homes)[weights.front()];
  return reader_of(home) == device ? home : own_tier(device);
}

/// Seconds of one of LIA's six sublayers, of experts those that the task has.
double sublayer_seconds(const CostModel& costs, const TaskTag& tag, Sublayer sublayer,
                        Device device, const MemoryPlan* memory) {
  const BatchShape shape = batch_shape(tag);
  const Tier operand = operand_tier(tag, sublayer, device, memory);
  const LayerHomes* homes = homes_of(tag, memory);
  const CountedHotExperts* hot = homes != nullptr ? hot_experts(*homes) : nullptr;
  if (hot == nullptr || properties_of(sublayer).part != IterationPart::ffn)
    return share_of_experts(costs.model(), tag) * costs.compute_s(device, sublayer, shape, operand);
  const auto rows = static_cast<double>(shape.total_rows());
  const ExpertPart part =
      tag.experts_are_hot ? hot->hot(costs.model(), rows) : hot->cold(costs.model(), rows);
  const std::int64_t all =
      tag.experts_are_hot ? hot->count() : costs.model().num_experts - hot->count();
  const double share =
      tag.num_experts == 0 ? 1 : static_cast<double>(tag.num_experts) / static_cast<double>(all);
  return share * costs.experts_s(device, sublayer, shape, operand, part);
}

double kernel_seconds(const CostModel& costs, const TaskTag& tag, Device device,
                      const MemoryPlan* memory) {
  if (tag.sublayer == Sublayer::lm_head) return costs.lm_head_s(device, tag.num_logit_rows);
  const BatchShape shape = batch_shape(tag);
  // Each page is read once and written once, as new KV is.
  if (tag.sublayer == Sublayer::kv_move)
    return costs.compute_s(device, Sublayer::kv_store, shape, own_tier(device));
  if (tag.sublayer == Sublayer::attention || tag.sublayer == Sublayer::kv_store) {
    return costs.compute_s(device, tag.sublayer, shape,
                           operand_tier(tag, tag.sublayer, device, memory)) +
           (writes_to_disk(tag, memory) ? write_kv_s(costs, shape) : 0);
  }
  double seconds = 0;
  for (const Sublayer sublayer : layer_sublayers) {
    if (tag.sublayer <= sublayer && sublayer <= tag.last_sublayer)
      seconds += sublayer_seconds(costs, tag, sublayer, device, memory);
  }
  return seconds > 0 ? seconds : costs.task_overhead_s(device, 1);
}

}  // namespace

double share_of_experts(const ModelDimensions& model, const TaskTag& tag) {
  if (tag.num_experts == 0 || model.num_experts == 0) return 1;
  return static_cast<double>(tag.num_experts) / static_cast<double>(model.num_experts);
}

BatchShape batch_shape(const TaskTag& tag) {
  const std::int64_t count = std::max<std::int64_t>(1, tag.num_sequences);
  return {.phase = tag.phase,
          .batch = count,
          .rows = std::max<std::int64_t>(1, mean(tag.num_tokens, count)),
          .context = std::max<std::int64_t>(1, mean(tag.context_tokens, count))};
}

double task_seconds(const CostModel& costs, const TaskTag& tag, Device device,
                    const MemoryPlan* memory) noexcept {
  try {
    double seconds = 0;
    double layer_s = 0;
    const LayerHomes* last_homes = nullptr;
    TaskTag of_layer = tag;
    for (std::int16_t i = 0; i < tag.num_layers; ++i, ++of_layer.layer) {
      const LayerHomes* homes = homes_of(of_layer, memory);
      if (i == 0 || !are_same(homes, last_homes))
        layer_s = kernel_seconds(costs, of_layer, device, memory);
      seconds += layer_s;
      last_homes = homes;
    }
    return std::isfinite(seconds) ? std::max(seconds, shortest_s) : shortest_s;
  } catch (const std::exception&) {
    return shortest_s;
  }
}

std::vector<SublayerSeconds> stage_parts(const CostModel& costs, const TaskTag& tag, Device device,
                                         const MemoryPlan* memory) {
  std::vector<SublayerSeconds> parts;
  if (tag.sublayer == tag.last_sublayer) return parts;
  const double overhead_s = costs.task_overhead_s(device, 2) - costs.task_overhead_s(device, 1);
  const double share = share_of_experts(costs.model(), tag);
  TaskTag of_layer = tag;
  for (std::int16_t i = 0; i < tag.num_layers; ++i, ++of_layer.layer) {
    for (const Sublayer sublayer : layer_sublayers) {
      if (sublayer < tag.sublayer || sublayer > tag.last_sublayer) continue;
      const double seconds =
          share * overhead_s + sublayer_seconds(costs, of_layer, sublayer, device, memory);
      if (sublayer == Sublayer::sv && !parts.empty() &&
          parts.back().sublayer == Sublayer::attention) {
        parts.back().seconds += seconds;
        continue;
      }
      const bool attends = sublayer == Sublayer::qk || sublayer == Sublayer::sv;
      parts.push_back({of_layer.layer, attends ? Sublayer::attention : sublayer, seconds});
    }
  }
  return parts;
}

std::uint32_t task_footprint(const TaskTag& tag) noexcept {
  const auto bucket = [](std::int64_t count) {
    return static_cast<std::uint32_t>(
        std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(0, count))));
  };
  std::uint32_t footprint = static_cast<std::uint32_t>(tag.device);
  footprint = footprint << 1 | static_cast<std::uint32_t>(tag.phase);
  footprint = footprint << 5 | static_cast<std::uint32_t>(tag.sublayer);
  footprint = footprint << 5 | static_cast<std::uint32_t>(tag.last_sublayer);
  footprint = footprint << 6 | (bucket(tag.num_tokens) & 63U);
  footprint = footprint << 6 | (bucket(tag.num_sequences) & 63U);
  footprint = footprint << 5 | (bucket(tag.context_tokens) & 31U);
  return footprint << 3 | (bucket(tag.num_layers) & 7U);
}

}  // namespace sluice
