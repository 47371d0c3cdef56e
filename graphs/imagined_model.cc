#include "graphs/imagined_model.h"

#include <algorithm>

namespace sluice {

struct ImaginedModel::Maker {
  ImaginedModel& model;
  double weight_bits;
  const TierNodes& nodes;

  unsigned node(Tier tier) const { return nodes.at(static_cast<std::size_t>(tier)); }

  DataHandle bytes(std::size_t size_bytes, Tier tier) {
    model.weight_bytes_ += size_bytes;
    return DataHandle::imagined(size_bytes, node(tier));
  }

  std::size_t weight_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(static_cast<double>(elements) * weight_bits / 8);
  }

  /// One handle, and another of what stays in HBM.
  DataHandle weight(const LayerMatrix& matrix, const LayerHomes& homes) {
    std::int64_t resident = 0;
    std::int64_t streamed = 0;
    Tier slowest = Tier::hbm;
    for (const LayerTensor& tensor : matrix.tensors) {
      const Tier home = homes[kind_of(tensor.role)];
      (home == Tier::hbm ? resident : streamed) += tensor.shape[0] * tensor.shape[1];
      slowest = std::max(slowest, home);
    }
    if (streamed == 0) return bytes(weight_bytes(resident), Tier::hbm);
    if (resident > 0) model.resident_parts_.push_back(bytes(weight_bytes(resident), Tier::hbm));
    return bytes(weight_bytes(streamed), slowest);
  }

  /// A chunk has one home: the slower one of what its experts' weights have; of hot experts HBM.
  void add_chunks(std::size_t expert_bytes, const LayerHomes& homes, std::int64_t num_hot,
                  ExpertWeights& experts) {
    const Tier home = std::max(homes[WeightKind::fc1], homes[WeightKind::fc2]);
    experts.cut =
        ExpertChunks::cut(model.config_.num_experts, expert_bytes, most_chunk_bytes, num_hot);
    for (std::int32_t chunk = 0; chunk < experts.cut.count(); ++chunk) {
      experts.chunks.push_back(
          bytes(static_cast<std::size_t>(experts.cut.size_of(chunk)) * expert_bytes,
                experts.cut.is_hot(chunk) ? Tier::hbm : home));
    }
    const std::size_t table_bytes =
        static_cast<std::size_t>(model.config_.num_experts) * sizeof(std::int32_t);
    if (num_hot > 0) experts.places = DataHandle::imagined(table_bytes, node(Tier::ddr));
  }
};

ImaginedModel::ImaginedModel(const ModelConfig& config, DType dtype,
                             const ModelDimensions& dimensions, const MemoryPlan& memory,
                             const TierNodes& nodes)
    : ModelWeights(config, imagined_decoder_shape(config, dtype)) {
  Maker imagined{*this, dimensions.weight_bits, nodes};
  check_hot_experts(config, memory.hot_experts);
  const auto table_bytes = [&](std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns) * size_bytes(dtype);
  };
  token_table = imagined.bytes(table_bytes(config.vocab_size, config.embed_size), memory.embedding);
  if (config.position == PositionKind::learned) {
    positions = imagined.bytes(
        table_bytes(config.max_positions + config.position_offset, config.hidden_size),
        memory.embedding);
  }
  if (shape_.rope)
    frequencies = imagined.bytes(static_cast<std::size_t>(config.head_dim / 2) * sizeof(float),
                                 memory.embedding);
  if (config.has_projections()) {
    const std::size_t projection = table_bytes(config.embed_size, config.hidden_size);
    project_in.data = imagined.bytes(projection, memory.embedding);
    project_out.data = imagined.bytes(projection, memory.lm_head);
  }
  // As in reality, the head is a packed copy of its own.
  const std::size_t head_bytes =
      dimensions.head_bits > 0 ? static_cast<std::size_t>(dimensions.head_bytes(
                                     static_cast<double>(config.vocab_size * config.embed_size)))
                               : table_bytes(config.vocab_size, config.embed_size);
  head.data = imagined.bytes(head_bytes, memory.lm_head);
  if (config.final_norm && config.norm_affine)
    final_norm = imagined.bytes(static_cast<std::size_t>(2 * config.hidden_size) * sizeof(float),
                                memory.lm_head);

  layers_.reserve(memory.layers.size());
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const LayerHomes& homes = memory.layers[layer];
    LayerWeights& weights = layers_.emplace_back();
    const std::int64_t num_floats = std::max<std::int64_t>(1, vectors_.num_elements);
    weights.vectors = imagined.bytes(static_cast<std::size_t>(num_floats) * sizeof(float),
                                     homes[WeightKind::vectors]);
    std::size_t expert_bytes = 0;
    for (const LayerMatrix& matrix : layer_matrices(config, static_cast<std::int64_t>(layer))) {
      if (matrix.of_each_expert) {
        expert_bytes += imagined.weight_bytes(matrix.in * matrix.out);
      } else {
        weights.matrices[matrix.weight].data = imagined.weight(matrix, homes);
      }
    }
    const std::int64_t num_hot =
        std::ssize(hot_experts_of(memory.hot_experts, static_cast<std::int64_t>(layer)));
    if (expert_bytes > 0) imagined.add_chunks(expert_bytes, homes, num_hot, weights.experts);
  }
}

}  // namespace sluice
