#include "graphs/resident_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "codelets/weights/weight_packing.h"

namespace sluice {
namespace {

/// Whether all that becomes this weight has its home in HBM.
bool stays(const LayerHomes& homes, LayerWeight weight) {
  const std::span<const WeightKind> kinds = kinds_of(weight);
  return std::all_of(kinds.begin(), kinds.end(),
                     [&](WeightKind kind) { return homes[kind] == Tier::hbm; });
}

/// The same of a layer's experts: a chunk has one home.
bool experts_stay(const LayerHomes& homes) {
  return stays(homes, LayerWeight::fc1) && stays(homes, LayerWeight::fc2);
}

std::uint64_t packed_bytes(const std::optional<WeightType>& type) {
  return type ? WeightPacking::size_bytes(*type) : 0;
}

std::uint64_t float_bytes(std::int64_t count) {
  return static_cast<std::uint64_t>(count) * sizeof(float);
}

}  // namespace

WeightSizes::WeightSizes(const ModelConfig& config, DType dtype, std::uint64_t table_bytes)
    : before_layers(table_bytes) {
  const PackedWeights packed(config, dtype);
  before_layers += packed_bytes(packed.project_in);
  if (config.position == PositionKind::rope) before_layers += float_bytes(config.head_dim / 2);
  head = packed_bytes(packed.head);
  before_head += packed_bytes(packed.project_out);
  const std::uint64_t vectors =
      float_bytes(std::max<std::int64_t>(1, vector_layout(config).num_elements));
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const LayerWeightTypes& types = packed.layers[static_cast<std::size_t>(i)];
    Layer& layer = layers.emplace_back();
    layer.vectors = vectors;
    for (const LayerMatrix& matrix : layer_matrices(config, i)) {
      if (matrix.of_each_expert) continue;
      layer.matrices[matrix.weight] = WeightPacking::size_bytes(types[matrix.weight]);
    }
    if (config.has_experts(i)) {
      layer.expert = ExpertLayout::of(types).size_bytes();
      layer.experts = static_cast<std::uint64_t>(config.num_experts) * layer.expert;
    }
  }
  if (config.final_norm && config.norm_affine)
    before_head += float_bytes(config.hidden_size) * (config.norm == NormKind::layer_norm ? 2 : 1);
}

std::uint64_t WeightSizes::resident(const MemoryPlan& memory) const {
  std::uint64_t bytes = memory.embedding == Tier::hbm ? before_layers : 0;
  if (memory.lm_head == Tier::hbm) bytes += head + before_head;
  for (std::size_t i = 0; i < memory.layers.size(); ++i) {
    const LayerHomes& homes = memory.layers[i];
    const Layer& layer = layers.at(i);
    if (homes[WeightKind::vectors] == Tier::hbm) bytes += layer.vectors;
    for (const LayerWeight weight : all_layer_weights) {
      if (stays(homes, weight)) bytes += layer.matrices[weight];
    }
    const auto num_hot = hot_experts_of(memory.hot_experts, static_cast<std::int64_t>(i)).size();
    bytes += experts_stay(homes) ? layer.experts : num_hot * layer.expert;
    if (num_hot > 0) bytes += layer.experts / layer.expert * sizeof(std::int32_t);  // their places
  }
  return bytes;
}

std::uint64_t WeightSizes::Layer::total() const {
  return std::accumulate(matrices.begin(), matrices.end(), vectors + experts);
}

std::uint64_t WeightSizes::largest_pair() const {
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < layers.size(); ++i)
    most = std::max(most, layers[i].total() + layers[(i + 1) % layers.size()].total());
  return most;
}

ResidentWeights::ResidentWeights(const ModelWeights& model, const MemoryPlan& memory) {
  if (memory.embedding == Tier::hbm) {
    for (const DataHandle* handle :
         {&model.token_table, &model.positions, &model.project_in.data, &model.frequencies})
      add(*handle);
  }
  if (memory.lm_head == Tier::hbm) {
    for (const DataHandle* handle : {&model.head.data, &model.project_out.data, &model.final_norm})
      add(*handle);
  }
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const LayerHomes& homes = memory.layers[layer];
    const LayerWeights& weights = model.layers()[layer];
    if (homes[WeightKind::vectors] == Tier::hbm) add(weights.vectors);
    for (const LayerWeight weight : all_layer_weights) {
      if (stays(homes, weight)) add(weights.matrices[weight].data);
    }
    const ExpertWeights& experts = weights.experts;
    const std::int32_t count =
        experts_stay(homes) ? experts.cut.count() : experts.cut.num_hot_chunks();
    for (std::int32_t chunk = 0; chunk < count; ++chunk)
      add(experts.chunks[static_cast<std::size_t>(chunk)]);
    add(experts.places);
  }
}

std::uint64_t ResidentWeights::size_bytes() const {
  return std::accumulate(
      handles_.begin(), handles_.end(), std::uint64_t{0},
      [](std::uint64_t sum, const DataHandle* handle) { return sum + handle->size_bytes(); });
}

void ResidentWeights::hold_on(unsigned node) {
  held_.reserve(handles_.size());
  for (const DataHandle* handle : handles_) {
    held_.emplace_back(*handle, node, NodeAccess::Mode::read,
                       "bringing resident weights to the accelerator");
    // From a disk it has passed through main memory, which has room for little.
    if (!handle->lives_in_main_memory()) handle->leave(main_memory_node);
  }
}

void ResidentWeights::add(const DataHandle& handle) {
  if (handle) handles_.push_back(&handle);
}

}  // namespace sluice
