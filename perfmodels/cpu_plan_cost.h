#pragma once

#include <cstdint>
#include <map>
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
  /// Neighbouring cores that share something that is slower than they are, whether the system shows
  /// it or not (Sandwich section 3.3).
  struct Contention {
    int cores = 1;    ///< that share one
    Curve bandwidth;  ///< bytes/s of theirs together, over those that are active
  };
  std::vector<Contention> contention = {};
};

/// A profile's, in iterations of so many rows, by which the GEMMs' rate goes. Throws Error where
/// the profile describes no cores (cpu.topology and what goes with it).
CoreRates core_rates(const MachineProfile& profile, std::int64_t rows);

/// What a phase computes in one iteration.
struct PlanWork {
  double bytes = 0;         ///< weights and KV that are read
  double flops = 0;         ///< of GEMMs
  std::int64_t rounds = 0;  ///< of the thread pool
};

/// What an iteration over these sequences computes. A thread pool runs a round for each sublayer,
/// and one for the LM head.
PlanWork plan_work(const ModelDimensions& model, const std::vector<SequenceWork>& sequences);

/// How long an iteration takes by a plan. Each group reads its share of the weights: from the node
/// that the plan names, or where it names none from all nodes evenly. The slowest group sets the
/// time; that others help it is left out.
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
  double bandwidth(const Load& load, const CpuGroup& group) const;

  CoreRates rates_;
  PlanWork work_;
  std::map<int, int> node_of_;   ///< by core
  std::map<int, int> place_of_;  ///< by core: how many are left of it
  int num_nodes_ = 1;
};

}  // namespace sluice
