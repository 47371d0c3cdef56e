#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/batching/mini_batches.h"
#include "engine/batching/run_record.h"
#include "graphs/decoder_graph.h"
#include "schedulers/loader.h"

namespace sluice {

/// How many pages of KV there are, each with its part in all layers.
struct KvPages {
  std::int64_t all = 0;  ///< as many for each of the workload's requests
  /// For requests whose KV is in HBM, and for others: instead of the share of `all` that the policy
  /// gives them. Where some layers' KV is in HBM for all requests, the smaller one counts.
  std::optional<std::int64_t> hbm = std::nullopt;
  std::optional<std::int64_t> ddr = std::nullopt;
};

/// Requests whose KV lives on the same tiers.
struct KvCohort {
  std::vector<Tier> homes;  ///< of each layer
  std::int64_t pages = 0;
};

/// A policy at work in one run: it is started, its memory plan is known, and each iteration asks
/// it.
class PolicyRun {
 public:
  /// All outlive it. Throws Error when the policy's memory plan is impossible; what it takes of the
  /// host's memory is not looked at: a run adds that up at its real size, and part of it may live
  /// on a disk.
  PolicyRun(CheckedPolicy& policy, const CostModel& costs, const Workload& workload,
            const KvPages& kv);

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

  /// What happens next, where requests come and KV grows; nothing: as the engine has it.
  std::optional<Schedule> schedule(const Situation& situation) {
    return policy_.schedule(situation);
  }
  /// Which requests run next, and together.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests, Awaited awaited) {
    return policy_.plan_iteration(requests, awaited);
  }

  /// How a sub-batch is cut. One of prompts and others is of prompts.
  MiniBatches mini_batches(Phase phase) const;
  /// What comes ahead of its use.
  Prefetch prefetch(Phase phase) const {
    return pipelines_[static_cast<std::size_t>(phase)].prefetch;
  }
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
  void make_cohorts(const KvPages& kv);
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
