#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perfmodels/footprint.h"
#include "perfmodels/layer_cost.h"
#include "perfmodels/timeline.h"
#include "schedulers/checked_policy.h"
#include "schedulers/look_ahead.h"

namespace sluice {

/// Layers that are treated alike for requests that are treated alike.
struct LayerGroup {
  std::int64_t num_layers = 0;
  std::size_t sub_batch = 0;
  BatchShape shape;  ///< of its requests; where the batch is cut, of a mini-batch
  LayerHomes homes;
  LayerCost cost;  ///< of one layer and such a batch
};

/// Iterations with the same sub-batches of the same kinds of requests, about as many of each.
struct IterationGroup {
  std::int64_t count = 0;
  std::size_t num_sub_batches = 1;
  std::vector<LayerGroup> layers;  ///< most layers first
  std::vector<Chain> chains;       ///< of one iteration
  IterationEstimate estimate;      ///< of one iteration
};

/// What a policy does in one phase: prefill lasts until every request has its first token.
struct PhasePlan {
  Phase phase = Phase::prefill;
  Pipeline pipeline;
  /// In the order in which they first come, at least one; of no iteration where nothing decodes.
  std::vector<IterationGroup> groups;

  std::int64_t iterations() const;
  double seconds() const;
  BusyTimes busy() const;
  double mean_iteration_s() const;
  /// Of the phase's own requests: layers that are not resident, or any where all are; of those the
  /// ones of most requests.
  const LayerGroup& main_group() const;
};

/// A policy's answers for one workload on one machine, and what the cost model makes of them.
struct Plan {
  Workload workload;
  MemoryPlan memory;
  Footprint footprint;
  /// Empty, or which of the host's tiers is too small, in words: then the estimate is for a machine
  /// with more of it.
  std::string shortage;
  /// HBM has room for all weights that come there while sequences decode: those that decoding reads
  /// cross once, with the prompt or the first of these iterations.
  bool weights_stay = false;
  PhasePlan prefill;
  PhasePlan decode;

  double tpot_s = 0;  ///< of a request, on average; with one token each, of an iteration

  double ttft_s() const { return prefill.seconds(); }  ///< until all requests have a token
  double latency_s() const { return prefill.seconds() + decode.seconds(); }
  double tokens_per_s() const {
    return static_cast<double>(workload.batch * workload.output_tokens) / latency_s();
  }
  /// What the busiest part of the machine alone takes for this work, placed like this, with its
  /// name.
  std::pair<std::string_view, double> lower_bound() const;
};

/// Asks `policy`, iteration by iteration, and estimates. All requests come at once and are as long
/// as the workload says, of one token each way at least. While they only decode, the policy is
/// asked again after an eighth of their tokens. Iterations that are alike are taken to last as long
/// as one of mean size and context.
/// Throws Error when the plan does not fit HBM, KV that passes through it included, with the
/// numbers, or uses what the machine does not have, or leaves requests waiting for ever.
Plan make_plan(CheckedPolicy& policy, const CostModel& costs, const Workload& asked);

/// How many sequences of the workload's lengths fit every tier at once, as the policy places them,
/// up to most_sequences; 0: not even one does.
std::int64_t largest_fitting_batch(CheckedPolicy& policy, const CostModel& costs,
                                   Workload workload);
inline constexpr std::int64_t most_sequences = std::int64_t{1} << 20;

/// What of the weights may be on its way to the GPU, and from a disk into DDR, as the footprint
/// counts it. KV has places of its own.
Staging staging_of(const Plan& plan, const ModelDimensions& model);

}  // namespace sluice
