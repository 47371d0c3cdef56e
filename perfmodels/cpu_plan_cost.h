#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "base/cpu_plan.h"
#include "base/topology.h"
#include "perfmodels/curve.h"
#include "perfmodels/profile.h"
#include "perfmodels/work.h"

namespace sluice {

/// How fast a machine's cores read memory and meet each other. Bytes and seconds.
struct CoreRates {
  Curve node_bandwidth;     ///< bytes/s of a node's memory, over its cores that read it
  double remote_bandwidth;  ///< bytes/s that the cores of one node read of others' memory together
  Curve round_s;            ///< from one round of a thread pool to the next, over its threads
  double core_flop_per_s;   ///< of one core's GEMMs
  double core_attention_flop_per_s = core_flop_per_s;
  /// What attention reads of the bandwidth that products have.
  double attention_bandwidth_share = 1;
  Combine combine = Combine::max;
  /// Neighbouring cores that share something that is slower than they are, whether the system shows
  /// it or not (Sandwich section 3.3).
  struct Contention {
    int cores = 1;    ///< that share one
    Curve bandwidth;  ///< bytes/s of theirs together, over those that are active
  };
  std::vector<Contention> contention = {};
};

/// A profile's, in iterations of such a shape, by which the rates of GEMMs and of attention go.
/// Throws Error where the profile describes no cores (cpu.topology and what goes with it).
CoreRates core_rates(const MachineProfile& profile, const ModelDimensions& model,
                     const BatchShape& shape);
/// The same of one row, with attention at the rates of products.
CoreRates core_rates(const MachineProfile& profile);

/// What a phase computes in one iteration.
struct PlanWork {
  /// Of all layers together, by kind: each ends ahead of the next one, so that what memory limits
  /// and what arithmetic limits add up.
  struct Stage {
    double bytes = 0;  ///< weights or KV that are read
    double flops = 0;
  };
  std::vector<Stage> products = {};  ///< of weights
  Stage attention = {};
  std::int64_t rounds = 0;  ///< of the thread pool
  /// By these KV lies in the groups' memory; where there are more groups, on all nodes in turn.
  std::int64_t num_kv_heads = std::numeric_limits<std::int64_t>::max();

  double bytes() const;
  double flops() const;
};

/// What an iteration over these sequences computes. A thread pool runs a round for each sublayer,
/// and one for the LM head.
PlanWork plan_work(const ModelDimensions& model, const std::vector<SequenceWork>& sequences);

/// How long an iteration takes by a plan. Each group reads its share of the weights and of KV: from
/// the node that the plan names, or where it names none from all nodes evenly. The slowest group
/// sets the time; that others help it is left out.
class CpuPlanCost {
 public:
  CpuPlanCost(const Topology& topology, CoreRates rates, const PlanWork& work);

  double seconds(const CpuPhasePlan& plan) const;
  double operator()(const CpuPhasePlan& plan) const { return seconds(plan); }
  /// Bytes/s at which the group of this number reads.
  double bandwidth(const CpuPhasePlan& plan, std::size_t group) const;

 private:
  /// Cores that compute by a plan, by what they share: on each node, and of each contention.
  using Counts = std::map<int, int>;
  struct Load {
    Counts on_node;
    std::vector<Counts> sharing;
  };
  Load load_of(const CpuPhasePlan& plan) const;
  /// `from`: whose memory is read; nothing: all nodes' in turn.
  double bandwidth(const Load& load, const CpuGroup& group, std::optional<int> from) const;
  double stage_s(const PlanWork::Stage& stage, double bytes_per_s, double flop_per_s) const;

  CoreRates rates_;
  PlanWork work_;
  std::map<int, int> node_of_;   ///< by hardware thread
  std::map<int, int> place_of_;  ///< by hardware thread: how many cores are left of its own
  int num_nodes_ = 1;
};

}  // namespace sluice
