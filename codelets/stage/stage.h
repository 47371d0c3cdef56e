#pragma once

#include "codelets/attention/attention.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/shape.h"
#include "codelets/runtime/sublayer_range.h"

namespace sluice {

/// Argument of a stage: sublayers that run on one device, one after the other, as one task (LIA's
/// placement puts neighbours on one device more often than not; the chain of small tasks would cost
/// a scheduling decision and a wait each).
struct StageArgs {
  TaskTag tag;  ///< its sublayer and last_sublayer name the range
  DecoderShape shape;
  VectorLayout vectors;
  KvPath kv = KvPath::slab;  ///< of a range that holds some of sublayers 1 to 3

  SublayerRange range() const { return {tag.sublayer, tag.last_sublayer}; }
};

/// What the range's sublayers read and write; see each codelet. Values that only sublayers of the
/// range share (q, scores, context, h) stay in scratch memory, and are empty here; so are slab and
/// new_kv where StageArgs::kv has no use for them.
struct StageHandles {
  const DataHandle& batch;
  const DataHandle& x;
  const DataHandle& rope;
  const DataHandle& vectors;
  const DataHandle& qkv_weight;
  const DataHandle& out_weight;
  const DataHandle& gate_weight;
  const DataHandle& fc1_weight;
  const DataHandle& fc2_weight;
  const DataHandle& slab;
  const DataHandle& new_kv;
  const DataHandle& q;
  const DataHandle& scores;
  const DataHandle& context;
  const DataHandle& h;
};

/// A range of one sublayer is submitted as that sublayer's own codelet.
void submit_stage(const StageArgs& args, const StageHandles& handles);

}  // namespace sluice
