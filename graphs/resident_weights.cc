#include "graphs/resident_weights.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "codelets/weights/weight_packing.h"

namespace sluice {
namespace {

bool all_in_hbm(const LayerHomes& homes, std::initializer_list<WeightKind> kinds) {
  return std::all_of(kinds.begin(), kinds.end(),
                     [&](WeightKind kind) { return homes[kind] == Tier::hbm; });
}

/// What of a layer has its home in HBM, whole.
struct ResidentPieces {
  explicit ResidentPieces(const LayerHomes& homes)
      : vectors(all_in_hbm(homes, {WeightKind::vectors})),
        qkv(all_in_hbm(homes, {WeightKind::query, WeightKind::key, WeightKind::value})),
        out(all_in_hbm(homes, {WeightKind::out_proj})),
        fc1(all_in_hbm(homes, {WeightKind::fc1})),
        fc2(all_in_hbm(homes, {WeightKind::fc2})) {}
  bool vectors, qkv, out, fc1, fc2;
};

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
  for (const LayerWeightTypes& types : packed.layers) {
    const std::uint64_t gate = packed.gated_ffn ? packed_bytes(types.gate) : 0;
    layers.push_back({.vectors = vectors,
                      .qkv = packed_bytes(types.qkv),
                      .out = packed_bytes(types.out),
                      .fc1 = packed_bytes(types.fc1) + gate,
                      .fc2 = packed_bytes(types.fc2)});
  }
  if (config.final_norm && config.norm_affine)
    before_head += float_bytes(config.hidden_size) * (config.norm == NormKind::layer_norm ? 2 : 1);
}

std::uint64_t WeightSizes::resident(const MemoryPlan& memory) const {
  std::uint64_t bytes = memory.embedding == Tier::hbm ? before_layers : 0;
  if (memory.lm_head == Tier::hbm) bytes += head + before_head;
  for (std::size_t i = 0; i < memory.layers.size(); ++i) {
    const ResidentPieces stays(memory.layers[i]);
    const Layer& layer = layers.at(i);
    for (const auto& [there, size] : {std::pair(stays.vectors, layer.vectors),
                                      {stays.qkv, layer.qkv},
                                      {stays.out, layer.out},
                                      {stays.fc1, layer.fc1},
                                      {stays.fc2, layer.fc2}})
      bytes += there ? size : 0;
  }
  return bytes;
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
    const ResidentPieces stays(memory.layers[layer]);
    const LayerWeights& weights = model.layers()[layer];
    if (stays.vectors) add(weights.vectors);
    if (stays.qkv) add(weights.qkv.data);
    if (stays.out) add(weights.out.data);
    if (stays.fc1) {
      add(weights.fc1.data);
      add(weights.gate.data);
    }
    if (stays.fc2) add(weights.fc2.data);
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
