#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "codelets/attention/attention.h"
#include "codelets/experts/expert_layout.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/shape.h"
#include "codelets/runtime/sublayer_range.h"
#include "codelets/weights/weight.h"
#include "perfmodels/layer_run.h"

namespace sluice {

/// Argument of a stage: sublayers that run on one device, one after the other, as one task (LIA's
/// placement puts neighbours on one device more often than not; the chain of small tasks would cost
/// a scheduling decision and a wait each). A stage of all six may go through several layers.
struct StageArgs {
  TaskTag tag;  ///< its sublayer and last_sublayer name the range, num_layers how many layers
  DecoderShape shape;
  VectorLayout vectors;
  KvPath kv = KvPath::slab;  ///< of a range that holds some of sublayers 1 to 3
  /// Few rows, and weights and KV that stay where they are: the next iterations' tasks launch the
  /// same kernels at the same addresses, or at a few others.
  bool recurs = false;
  /// Each layer's window in place of the shape's, tag.num_layers of them; see DecoderShape.
  std::array<std::int64_t, most_layers_of_task> window_tokens{};
  std::array<LayerWeightTypes, most_layers_of_task> weights{};  ///< of each layer
  /// Of layers with experts, whose weights' gate, fc1 and fc2 are one expert's: behind sublayer 4
  /// comes the router, and 5 and 6 are experts and join, before them the shared FFN if there is
  /// one.
  MixtureShape mixture = {};
  std::array<ExpertChunks, most_layers_of_task> chunks{};  ///< of each layer's experts

  /// The shape of the i-th layer.
  DecoderShape layer_shape(std::int16_t i) const {
    DecoderShape of_layer = shape;
    of_layer.sliding_window_tokens = window_tokens.at(static_cast<std::size_t>(i));
    return of_layer;
  }
  /// The tag of the i-th layer alone.
  TaskTag tag_of(std::size_t i) const {
    TaskTag of_layer = tag;
    of_layer.layer += static_cast<std::int32_t>(i);
    of_layer.num_layers = 1;
    return of_layer;
  }
  SublayerRange range() const { return {tag.sublayer, tag.last_sublayer}; }
  bool has_experts() const { return mixture.num_experts > 0; }
};
/// Of a layer with more chunks than this the experts are no part of a stage.
inline constexpr std::int32_t most_chunks_in_stage = 16;

/// What is one layer's. Slab and new_kv are empty where StageArgs::kv has no use for them.
struct LayerHandles {
  HandleRef vectors;
  PerLayerWeight<const DataHandle*> matrices;
  HandleRef slab;
  HandleRef new_kv;
  std::span<const DataHandle> chunks = {};  ///< of the experts, where the range has sublayers 5, 6
};

/// What the range's sublayers read and write; see each codelet. Values that only sublayers of the
/// range share (q, scores, context, h) stay in scratch memory, and are empty here.
struct StageHandles {
  std::span<const LayerHandles> layers;  ///< tag.num_layers
  HandleRef batch;
  HandleRef x;
  HandleRef rope;
  HandleRef q;
  HandleRef scores;
  HandleRef context;
  HandleRef h;
  HandleRef normed;   ///< where a layer with experts is cut behind the router; see RouterOperands
  HandleRef routing;  ///< likewise
};

/// A range of one sublayer is submitted as that sublayer's own codelet. A layer's experts alone are
/// no stage, nor is its router.
void submit_stage(const StageArgs& args, const StageHandles& handles);

}  // namespace sluice
