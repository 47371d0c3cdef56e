#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/measure/run_record.h"
#include "engine/mini_batches.h"
#include "graphs/decoder_graph.h"
#include "schedulers/loader.h"

namespace sluice {

class CommandLine;

/// --policy and --policy-option.
void declare_policy_options(CommandLine& line);
/// What --policy-option says, by key. Throws UsageError.
std::map<std::string, std::string> read_policy_options(const CommandLine& line);
/// --parameters-tier and --kv-tier.
void declare_host_tiers(CommandLine& line);
/// What they say. Throws UsageError.
HostTiers read_host_tiers(const CommandLine& line);
/// The options that say the same.
std::vector<std::string> arguments_of(const HostTiers& tiers);
/// --kv-tier: DDR, CXL memory or a disk; empty when it was not given. Throws UsageError.
std::optional<Tier> read_kv_tier(const CommandLine& line);

/// Requests whose KV lives on the same tiers.
struct KvCohort {
  std::vector<Tier> homes;  ///< of each layer
  std::int64_t requests = 0;
};

/// A policy at work in one run: it is started, its memory plan is known, and each iteration asks
/// it.
class PolicyRun {
 public:
  /// All outlive it. Throws Error when the policy's memory plan is impossible; what it takes of the
  /// host's memory is not looked at: a run adds that up at its real size, and part of it may live
  /// on a disk.
  PolicyRun(CheckedPolicy& policy, const CostModel& costs, const Workload& workload);

  /// Throws Error unless the memory plan is the one that was made before for the same machine and
  /// workload, which what it runs on was set up for.
  void check_as_planned(const MemoryPlan& planned, const Workload& workload) const;

  /// Where each layer's weights, and KV, live that the policy leaves to the host; what lives on a
  /// disk passes through DDR, and the policy sees it as being there.
  void set_host_homes(const std::vector<Tier>& layers, Tier kv);

  /// `options` with the devices that its memory plan implies.
  DecoderGraph::Options graph_options(DecoderGraph::Options options) const;

  /// Where the LM head and sampling run.
  Device head_device() const;

  /// Each layer's home of KV, for all requests whose KV is not in HBM as a whole.
  std::vector<Tier> kv_homes() const;
  /// The KV caches to make, for the graph; a request takes the first that has room.
  const std::vector<KvCohort>& kv_cohorts() const { return kv_cohorts_; }

  /// Which requests run next, and together.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests, Awaited awaited) {
    return policy_.plan_iteration(requests, awaited);
  }

  /// How a sub-batch is cut. One of prompts and others is of prompts.
  MiniBatches mini_batches(Phase phase) const;
  /// Prompts run in so many at least, whatever the policy says.
  void cut_prefill(std::int64_t mini_batches) {
    pipelines_[static_cast<std::size_t>(Phase::prefill)].mini_batches = mini_batches;
  }
  const MemoryPlan& memory() const { return memory_; }
  const std::string& name() const { return policy_.name(); }

  /// Fills in where each layer of a sub-batch runs, part by part; parts that turn out alike become
  /// one. Says once, on stderr, when the policy wants a
  /// device that the machine does not have.
  void place(SubBatch& sub_batch);
  /// Of a phase, how many layers of all sub-batches so far had each placement, by
  /// Placement::bits().
  const std::array<std::int64_t, num_placements>& placed_layers(Phase phase) const {
    return placed_layers_.at(static_cast<std::size_t>(phase));
  }
  /// Every sub-batch placed from now on is added to `record`, which outlives this; null: none.
  void record_into(RunRecord* record) { record_ = record; }

 private:
  Tier on_disk_if_there(Tier home) const;
  /// The device that reads a tier's weights where they live, the CPU if there is none.
  Device reader(Tier tier) const;
  /// For each layer the device that reads all of its weights where they live, if there is one.
  std::vector<std::optional<Device>> weight_readers() const;

  CheckedPolicy& policy_;
  const CostModel& costs_;
  Workload workload_;
  MemoryPlan answered_;  ///< by the policy
  MemoryPlan memory_;    ///< the same; where all requests have their KV in HBM, the layers say so
  bool has_kv_on_disk_ = false;
  std::vector<Tier> host_layers_;  ///< as set_host_homes() had them
  std::vector<KvCohort> kv_cohorts_;
  std::array<Pipeline, 2> pipelines_;
  std::array<std::array<std::int64_t, num_placements>, 2> placed_layers_{};
  bool said_lacking_ = false;
  RunRecord* record_ = nullptr;
};

}  // namespace sluice
