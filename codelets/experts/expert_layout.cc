#include "codelets/experts/expert_layout.h"

#include "codelets/weights/weight_packing.h"

namespace sluice {

ExpertLayout ExpertLayout::of(const LayerWeightTypes& types, const MixtureShape& mixture) {
  const auto in_lines = [](std::size_t bytes) {
    constexpr std::size_t line = 64;
    return (bytes + line - 1) / line * line;
  };
  const auto bytes = [&](const WeightType& type) {
    return type.out == 0 ? std::size_t{0} : in_lines(WeightPacking::size_bytes(type));
  };
  const auto bias_bytes = [&](const WeightType& type) {
    return mixture.expert_bias ? in_lines(static_cast<std::size_t>(type.out) * sizeof(float)) : 0;
  };
  return {.gate = types[LayerWeight::gate],
          .fc1 = types[LayerWeight::fc1],
          .fc2 = types[LayerWeight::fc2],
          .gate_bytes = bytes(types[LayerWeight::gate]),
          .fc1_bytes = bytes(types[LayerWeight::fc1]),
          .fc2_bytes = bytes(types[LayerWeight::fc2]),
          .gate_bias_bytes = bias_bytes(types[LayerWeight::gate]),
          .fc1_bias_bytes = bias_bytes(types[LayerWeight::fc1]),
          .fc2_bias_bytes = bias_bytes(types[LayerWeight::fc2])};
}

namespace {

/// Experts of a chunk: as few chunks as possible, and of one size as far as that goes.
std::int32_t experts_of_chunk(std::int32_t experts, std::size_t fitting, std::int32_t most_count) {
  if (experts == 0) return 0;
  const auto most = static_cast<std::int32_t>(
      std::clamp<std::size_t>(fitting, 1, static_cast<std::size_t>(experts)));
  const std::int32_t count = std::min((experts + most - 1) / most, most_count);
  return (experts + count - 1) / count;
}

}  // namespace

ExpertChunks ExpertChunks::cut(std::int64_t num_experts, std::size_t expert_bytes,
                               std::size_t most_of_chunk, std::int64_t num_hot) {
  const auto hot = static_cast<std::int32_t>(num_hot);
  const auto others = static_cast<std::int32_t>(num_experts) - hot;
  const std::size_t fitting = most_of_chunk / std::max<std::size_t>(1, expert_bytes);
  const std::int32_t most_count = hot == 0 ? most_chunks : most_chunks / 2;
  return {.num_experts = static_cast<std::int32_t>(num_experts),
          .per_chunk = experts_of_chunk(others, fitting, most_count),
          .num_hot = hot,
          .per_hot_chunk = experts_of_chunk(hot, fitting, most_count)};
}

ExpertOrder::ExpertOrder(std::int32_t num_experts, std::span<const std::int32_t> hot)
    : experts(hot.begin(), hot.end()), places(static_cast<std::size_t>(num_experts)) {
  std::ranges::sort(experts);
  const auto first_other = std::ssize(experts);
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    if (!std::binary_search(experts.begin(), experts.begin() + first_other, expert))
      experts.push_back(expert);
  }
  for (std::size_t place = 0; place < experts.size(); ++place)
    places.at(static_cast<std::size_t>(experts[place])) = static_cast<std::int32_t>(place);
}

}  // namespace sluice
