#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "engine/batching/mini_batches.h"
#include "engine/run/tiers.h"
#include "graphs/decoder_graph.h"
#include "models/config.h"

namespace sluice {

/// What a task takes beside its operands, and a stage of several around it, for so many rows:
/// input, q, k, v, attention, FFN, for `logit_rows` of them once more, and their logits. Bytes.
std::uint64_t activation_bytes(const ModelConfig& config, DType dtype, std::int64_t rows,
                               std::int64_t logit_rows);
/// Scores that QK^T as a task of its own stores: of each of `rows` new tokens, over at most
/// `context_tokens`, of two layers.
std::uint64_t score_bytes(const ModelConfig& config, std::int64_t rows,
                          std::int64_t context_tokens);

/// What decides how much passes between tasks, and how much each of them takes.
struct TaskForms {
  DType dtype = DType::bf16;
  Fusion fusion = Fusion::layers;
  AttentionForm attention = AttentionForm::fused;
  bool accelerated = false;  ///< which cuts layers where the device changes
};
/// What iterations of at most these sizes take of the host's memory: activations, workspaces and
/// scores over `context_tokens`; no KV, no tables.
HostNeed iteration_need(const ModelConfig& config, std::span<const IterationSize> sizes,
                        std::int64_t context_tokens, const TaskForms& forms);

}  // namespace sluice
