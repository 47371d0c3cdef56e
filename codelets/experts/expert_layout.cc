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

ExpertChunks ExpertChunks::cut(std::int64_t num_experts, std::size_t expert_bytes,
                               std::size_t most_of_chunk) {
  const auto experts = static_cast<std::int32_t>(num_experts);
  if (experts == 0) return {};
  const std::size_t fitting = most_of_chunk / std::max<std::size_t>(1, expert_bytes);
  const auto most = static_cast<std::int32_t>(
      std::clamp<std::size_t>(fitting, 1, static_cast<std::size_t>(experts)));
  // As few as possible, and of one size as far as that goes.
  const std::int32_t count = std::min((experts + most - 1) / most, most_chunks);
  return {.num_experts = experts, .per_chunk = (experts + count - 1) / count};
}

}  // namespace sluice
