#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "perfmodels/chain.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

/// What a run is for, as far as it is known beforehand.
struct Workload {
  std::int64_t batch = 1;
  std::int64_t input_tokens = 512;
  std::int64_t output_tokens = 128;

  std::int64_t total_tokens() const { return input_tokens + output_tokens; }
  bool operator==(const Workload&) const = default;
};

/// Bytes of the K and V of one sequence of the workload at its full length in one layer: whole
/// pages.
double sequence_kv_bytes(const ModelDimensions& model, const Workload& workload);

/// Bytes of every tier.
class TierBytes {
 public:
  double& operator[](Tier tier) { return bytes_[static_cast<std::size_t>(tier)]; }
  double operator[](Tier tier) const { return bytes_[static_cast<std::size_t>(tier)]; }

 private:
  std::array<double, 4> bytes_{};
};

/// What a tier holds at its fullest, by purpose, in bytes.
struct Footprint {
  TierBytes weights;
  TierBytes kv;
  TierBytes staging;  ///< weights and KV that pass through
  TierBytes activations;

  double total(Tier tier) const {
    return weights[tier] + kv[tier] + staging[tier] + activations[tier];
  }
};

/// Bytes of values that one chain of `rows` new tokens keeps while a layer runs: residual (f32),
/// input, q, k, v, attention's output, the FFN's middle. Scores are never stored at full size.
double activation_bytes(const ModelDimensions& model, double rows);

/// Bytes of values in HBM while all sequences decode: a chain's, and the logits (f32) where the
/// head runs there.
double decode_activation_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                               const Pipeline& decode, const Workload& workload);

/// Bytes of the two units of weights (halves of a layer, or layers) that are in HBM at a time when
/// they stream through it.
double staging_bytes(const ModelDimensions& model, const MemoryPlan& memory, Prefetch prefetch);

/// Bytes of all layers' weights that do not live in HBM.
double weights_outside_hbm_bytes(const ModelDimensions& model, const MemoryPlan& memory);

/// Likewise to staging_bytes(), of those that live on a disk, in DDR.
double disk_staging_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                          Prefetch prefetch);

/// Bytes of KV that live on a disk and are in DDR at a time, at the sequences' full length: one
/// layer's, that of the next where it comes meanwhile, and as much again, where kernels put it
/// together with what is new.
double disk_kv_staging_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                             Prefetch prefetch, const Workload& workload);

/// Bytes of KV that live elsewhere and are in HBM at a time while the GPU attends with them, at the
/// sequences' full length: what an iteration of these chains brings for one layer, the
/// largest; twice that where the next layer's comes meanwhile. Half layers take turns: while the
/// FFN computes, the next attention's KV takes the place of the last one's.
double passing_kv_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                        std::span<const Chain> chains, Prefetch prefetch, const Workload& workload);

/// What a run under a plan takes of each tier. `pipelines` by phase; `passing_kv`: the most that
/// passing_kv_bytes() is in any iteration, 0 when attention runs where KV lives.
Footprint footprint(const CostModel& costs, const MemoryPlan& memory,
                    const std::array<Pipeline, 2>& pipelines, const Workload& workload,
                    double passing_kv = 0);

/// Whether that stays within HBM's capacity.
bool fits_hbm(const CostModel& costs, const MemoryPlan& memory,
              const std::array<Pipeline, 2>& pipelines, const Workload& workload,
              double passing_kv = 0);

/// Cuts prefill into as few mini-batches as make the run fit HBM wherever decode's attention runs,
/// at most one request each, and says whether it does then.
bool cut_prefill_to_fit(const CostModel& costs, const MemoryPlan& memory, const Workload& workload,
                        std::array<Pipeline, 2>& pipelines);

}  // namespace sluice
