#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codelets/runtime/runtime.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight_handle.h"
#include "models/config.h"
#include "models/layer_schema.h"
#include "perfmodels/placement.h"
#include "perfmodels/routing.h"

namespace sluice {

/// Of one expert of a mixture: its gate, fc1 and fc2.
using ExpertWeights = PerLayerWeight<DataHandle>;

/// The weights of one decoder layer as StarPU handles.
struct LayerWeights {
  DataHandle vectors;  ///< f32, see VectorLayout
  PerLayerWeight<WeightHandle> matrices;
  std::vector<ExpertWeights> experts;  ///< imagined mixtures only, in place of gate, fc1, fc2

  LayerWeightTypes types() const;
};

/// What the kernels need to know of a model that computes in `dtype` (f32 or bf16). Throws Error
/// for one that cannot run. The window is none where layers differ: what is sized by it does for
/// every layer.
DecoderShape decoder_shape(const ModelConfig& config, DType dtype);
/// The same for a graph without kernels: ALiBi's positions are in no data, and of a mixture of
/// experts ffn_size is what passes from fc1 to fc2 of all the experts that a row goes through.
DecoderShape imagined_decoder_shape(const ModelConfig& config, DType dtype);
/// As what a layer's tensor is placed.
WeightKind kind_of(TensorRole role);
/// Where each small vector of a layer lies.
VectorLayout vector_layout(const ModelConfig& config);

/// The weights of a model that are packed, in the formats in which it has them; plain ones in the
/// type of the arithmetic.
struct PackedWeights {
  /// Throws Error for a model that cannot run.
  PackedWeights(const ModelConfig& config, DType dtype);

  std::optional<WeightType> project_in;
  std::optional<WeightType> project_out;
  WeightType head;
  std::vector<LayerMatrix> matrices;     ///< of each layer
  std::vector<LayerWeightTypes> layers;  ///< those that are no matrix are nothing

  /// Those of one layer, and those of all with what stands before and behind them; in the order in
  /// which LoadedModel packs them.
  std::vector<WeightType> layer(std::size_t index) const;
  std::vector<WeightType> all() const;
};

/// Bytes of all packed weights and vectors: what LoadedModel will take of memory.
std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype);

/// A model's weights as StarPU handles: what a graph works on.
class ModelWeights {
 public:
  const ModelConfig& config() const { return config_; }
  /// What all layers share: its window too, or none where they differ.
  const DecoderShape& shape() const { return shape_; }
  /// With this layer's own window.
  DecoderShape shape(std::int64_t layer) const {
    DecoderShape of_layer = shape_;
    of_layer.sliding_window_tokens = config_.window_tokens(layer);
    return of_layer;
  }
  const VectorLayout& vectors() const { return vectors_; }
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }
  /// Of a mixture, how many of a layer's experts so many rows are taken to go through.
  double experts_touched(double rows) const;

  DataHandle token_table;    ///< [vocab_size, embed_size] as stored
  DataHandle positions;      ///< learned position table as stored, or empty
  WeightHandle project_in;   ///< or empty
  WeightHandle project_out;  ///< or empty
  DataHandle frequencies;    ///< [head_dim / 2] f32, rotary models only
  DataHandle final_norm;     ///< weight, then bias, f32; or empty
  WeightHandle head;         ///< [vocab_size, embed_size]
  DType table_dtype = DType::bf16;
  DType position_dtype = DType::bf16;

 protected:
  ModelWeights(const ModelConfig& config, const DecoderShape& shape)
      : config_(config), shape_(shape), vectors_(vector_layout(config)) {}

  ModelConfig config_;
  DecoderShape shape_;
  VectorLayout vectors_;
  std::uint64_t weight_bytes_ = 0;
  std::vector<LayerWeights> layers_;
  std::optional<Routing> routing_;  ///< of an imagined mixture; nothing: even
};

}  // namespace sluice
