#pragma once

#include <cstdint>
#include <vector>

#include "perfmodels/cost_model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// The batch that a task computes: means over its sequences, rounded up.
BatchShape batch_shape(const TaskTag& tag);

/// Of a layer's experts, what a task with some of them computes: as many, whichever they are. 1 of
/// any other task.
double share_of_experts(const ModelDimensions& model, const TaskTag& tag);

/// Seconds inside of a task's kernel: the sum over its sublayers, the LM head's rows, or, for the
/// embedding, sampling and logprobs, which no cost model knows, what a task costs the task system;
/// to store KV that `memory` keeps on a disk takes write_kv_s() besides. Operands that the device
/// reads where they live (a CPU in CXL) are taken from there if `memory` is given, else from the
/// device's own memory. Never 0, infinite or NaN; what a cost model cannot answer counts like that,
/// too.
double task_seconds(const CostModel& costs, const TaskTag& tag, Device device,
                    const MemoryPlan* memory = nullptr) noexcept;

/// A part of a stage: attention stands for LIA's sublayers 2 and 3.
struct SublayerSeconds {
  std::int32_t layer;
  Sublayer sublayer;
  double seconds;
};
/// What task_seconds() is the sum of, in the order in which it is computed, with the task system's
/// share of each part. Empty for a task that is no stage of several sublayers.
std::vector<SublayerSeconds> stage_parts(const CostModel& costs, const TaskTag& tag, Device device,
                                         const MemoryPlan* memory = nullptr);

/// What tasks of one kind have in common, as a number: device, phase, sublayers, and powers of two
/// of rows, sequences, context and layers. Never exact lengths: almost every task would be its own
/// kind.
std::uint32_t task_footprint(const TaskTag& tag) noexcept;

}  // namespace sluice
