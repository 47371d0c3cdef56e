#include "graphs/resident_weights.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "codelets/weights/weight_packing.h"

namespace sluice {
namespace {

/// Whether all that becomes this weight has its home in HBM.
bool stays(const LayerHomes& homes, const LayerMatrix& matrix) {
  return std::all_of(matrix.tensors.begin(), matrix.tensors.end(), [&](const LayerTensor& tensor) {
    return homes[kind_of(tensor.role)] == Tier::hbm;
  });
}

std::uint64_t packed_bytes(const std::optional<WeightType>& type) {
  return type ? WeightPacking::size_bytes(*type) : 0;
}

std::uint64_t float_bytes(std::int64_t count) {
  return static_cast<std::uint64_t>(count) * sizeof(float);
}

}  // namespace

WeightSizes::WeightSizes(const ModelConfig& config, DType dtype, std::uint64_t table_bytes)
    : before_layers(table_bytes), matrices(layer_matrices(config)) {
  const PackedWeights packed(config, dtype);
  before_layers += packed_bytes(packed.project_in);
  if (config.position == PositionKind::rope) before_layers += float_bytes(config.head_dim / 2);
  head = packed_bytes(packed.head);
  before_head += packed_bytes(packed.project_out);
  const std::uint64_t vectors =
      float_bytes(std::max<std::int64_t>(1, vector_layout(config).num_elements));
  for (const LayerWeightTypes& types : packed.layers) {
    Layer& layer = layers.emplace_back();
    layer.vectors = vectors;
    for (const LayerMatrix& matrix : matrices)
      layer.matrices[matrix.weight] = WeightPacking::size_bytes(types[matrix.weight]);
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
    for (const LayerMatrix& matrix : matrices) {
      if (stays(homes, matrix)) bytes += layer.matrices[matrix.weight];
    }
  }
  return bytes;
}

std::uint64_t WeightSizes::Layer::total() const {
  return std::accumulate(matrices.begin(), matrices.end(), vectors);
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
  const std::vector<LayerMatrix> matrices = layer_matrices(model.config());
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const LayerHomes& homes = memory.layers[layer];
    const LayerWeights& weights = model.layers()[layer];
    if (homes[WeightKind::vectors] == Tier::hbm) add(weights.vectors);
    for (const LayerMatrix& matrix : matrices) {
      if (stays(homes, matrix)) add(weights.matrices[matrix.weight].data);
    }
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
