#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codelets/experts/expert_layout.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight_handle.h"
#include "models/config.h"
#include "models/layer_schema.h"
#include "perfmodels/placement.h"

namespace sluice {

/// The experts of one layer, in place of its gate, fc1 and fc2.
struct ExpertWeights {
  ExpertLayout layout;
  ExpertChunks cut;
  std::vector<DataHandle> chunks;  ///< cut.count(); none in a layer with one FFN
  DataHandle places;  ///< int32 [num_experts], see ExpertOrder; empty unless some are hot
};

/// By layer: experts that live in HBM and run there; empty: none.
using HotExperts = std::vector<std::vector<std::int32_t>>;
/// Those of one layer, in any order.
std::span<const std::int32_t> hot_experts_of(const HotExperts& hot, std::int64_t layer);
/// Throws Error, with layer and number, for experts that a layer does not have, or has twice, and
/// for more layers than the model's.
void check_hot_experts(const ModelConfig& config, const HotExperts& hot);

/// The weights of one decoder layer as StarPU handles.
struct LayerWeights {
  DataHandle vectors;  ///< f32, see VectorLayout
  PerLayerWeight<WeightHandle> matrices;
  ExpertWeights experts;

  LayerWeightTypes types() const;
};

/// What the kernels need to know of a model that computes in `dtype` (f32 or bf16). Throws Error
/// for one that cannot run. The window is none where layers differ: what is sized by it does for
/// every layer.
DecoderShape decoder_shape(const ModelConfig& config, DType dtype);
/// The same for a graph without kernels: ALiBi's positions are in no data.
DecoderShape imagined_decoder_shape(const ModelConfig& config, DType dtype);
/// What the kernels need to know of its experts.
MixtureShape mixture_shape(const ModelConfig& config);
/// As what the tensors are placed that become a layer's weight; the router beside the weight of the
/// sublayer that runs where it does.
std::span<const WeightKind> kinds_of(LayerWeight weight);
/// As what a layer's tensor is placed.
WeightKind kind_of(TensorRole role);
/// Where each small vector of a layer lies.
VectorLayout vector_layout(const ModelConfig& config);

/// The weights of a model that are packed, in the formats in which it has them; plain ones in the
/// type of the arithmetic.
struct PackedWeights {
  /// Throws Error for a model that cannot run, and as check_hot_experts().
  PackedWeights(const ModelConfig& config, DType dtype, std::size_t chunk_bytes = most_chunk_bytes,
                const HotExperts& its_hot_experts = {});

  std::optional<WeightType> project_in;
  std::optional<WeightType> project_out;
  WeightType head;
  std::vector<LayerWeightTypes> layers;  ///< those that are no matrix are nothing
  std::vector<ExpertChunks> experts;     ///< of each layer; their types are the layer's
  HotExperts hot_experts;

  /// The types of one layer's weights, those of an expert once.
  std::vector<WeightType> types_of_layer(std::size_t index) const;
  /// Bytes of one layer's pieces of data, and of all with what stands before and behind them; in
  /// the order in which LoadedModel packs them: the experts' chunks behind the layer's matrices.
  std::vector<std::size_t> layer_sizes(std::size_t index) const;
  std::vector<std::size_t> sizes() const;
  /// One line that changes with whatever changes a packed weight's bytes.
  std::string identity() const;
};

/// Bytes of all packed weights and vectors: what LoadedModel will take of memory.
std::uint64_t packed_weight_bytes(const ModelConfig& config, DType dtype);

/// A model's weights as StarPU handles: what a graph works on.
class ModelWeights {
 public:
  const ModelConfig& config() const { return config_; }
  /// What all layers share: its window too, or none where they differ.
  const DecoderShape& shape() const { return shape_; }
  /// With this layer's own window and FFN.
  DecoderShape shape(std::int64_t layer) const {
    DecoderShape of_layer = shape_;
    of_layer.sliding_window_tokens = config_.window_tokens(layer);
    of_layer.ffn_size = config_.ffn_size_of(layer);
    return of_layer;
  }
  const VectorLayout& vectors() const { return vectors_; }
  std::uint64_t weight_bytes() const { return weight_bytes_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }

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
};

}  // namespace sluice
