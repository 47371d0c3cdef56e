#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "schedulers/policy.h"

namespace sluice {

/// Which tiers' capacities a memory plan must keep: all, or HBM alone, for estimates of machines
/// with more memory than they have (LIA section 7's latency model does that).
enum class CapacityCheck : std::uint8_t { every_tier, hbm_only };

/// Overrides where a policy puts what the host keeps in DDR or CXL memory; empty: as it says.
struct HostTiers {
  std::optional<Tier> parameters;  ///< layers' weights: DDR or CXL memory
  std::optional<Tier> kv;          ///< or a disk
};

/// The first of those tiers that would hold more than it can, with all figures, in words; empty
/// when there is none.
std::string capacity_problem(const Footprint& footprint, const CostModel& costs,
                             CapacityCheck check);

/// What the exception that is being handled says, in one line, whatever it is.
std::string thrown_text();

/// Whether results are awaited, so that a policy may let all requests wait for them.
enum class Awaited : std::uint8_t { nothing, an_iteration };

/// What an error that a policy causes ends with: whose it is to correct.
enum class PolicyOrigin : std::uint8_t { shipped, own };

/// A policy's calls (policy.h says which come when), its mistakes caught. Whatever it throws, and
/// any answer that this model or machine cannot follow, becomes an Error of one line that names the
/// policy, the call, the problem and what to do.
class CheckedPolicy {
 public:
  /// Both outlive it.
  CheckedPolicy(Policy& policy, std::string name, PolicyOrigin origin = PolicyOrigin::own)
      : policy_(policy), name_(std::move(name)), origin_(origin) {}

  const std::string& name() const { return name_; }

  /// Throws UsageError for a key that the policy does not ask for.
  void configure(const std::map<std::string, std::string>& options);
  void start(const CostModel& costs, const Workload& workload);
  /// From now on what the policy puts into DDR or CXL memory lives in these tiers; embedding and LM
  /// head stay (LIA section 6).
  void set_host_tiers(HostTiers tiers) { host_tiers_ = tiers; }
  /// Refused: another number of layers than the model's, a tier that the machine does not have, a
  /// negative number of requests in HBM, or any where there is none, a device that is none for the
  /// LM head, something for a GPU that it does not use, hot experts that the model does not have or
  /// that are named twice, more bytes on a tier than it holds
  /// (footprint.h), and what pipeline() refuses. A head for a device that the machine does not have
  /// goes to the other one; lacked_device() tells. Of a model with experts fc1 and fc2 of a layer
  /// live together, on the slower tier of both.
  MemoryPlan plan_memory(CapacityCheck check = CapacityCheck::every_tier);
  /// Refused: no mini-batch, or more of them than sequences; a Prefetch that is none; another
  /// answer than the first one behind plan_memory().
  Pipeline pipeline(Phase phase);
  /// Sublayers for a device that the machine does not have go to the one that it has;
  /// lacked_device() tells. Refused: a device that is neither, and the GPU behind a memory plan
  /// that does not use it, and p5 other than p6 where the model has experts.
  Placement place(std::int64_t layer, const BatchShape& shape, const LayerHomes& homes);
  bool lacked_device() const { return lacked_device_; }
  /// Refused: an id that is not in the situation, one that comes twice, rows that a request cannot
  /// bring, more rows or requests than are possible, a tier that no pool is of, an empty sub-batch,
  /// and no sub-batch at all though nothing is under way. Pages are not counted.
  std::optional<Schedule> schedule(const Situation& situation);
  /// Refused: an id that is not among `requests`, one that comes twice, an empty sub-batch, no
  /// sub-batch at all though nothing is awaited, more requests of a phase than its pipeline says.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests,
                               Awaited awaited = Awaited::nothing);

 private:
  template <typename Call>
  auto guarded(const char* what, const Call& call);
  template <typename Call>
  auto guarded(const char* what, const char* advice, const Call& call);
  const CostModel& costs() const;
  /// The policy's answer, checked.
  Pipeline ask_pipeline(Phase phase);
  /// The device, or the one that the machine has. Throws for one that is none, and for the GPU
  /// where it is not used. `what()`: the words for what is to run there.
  template <typename What>
  Device check_device(Device device, const What& what);
  void check_tables(MemoryPlan& plan);
  void check_host_tier(const char* option, std::optional<Tier> tier) const;
  void move_to_host_tiers(MemoryPlan& plan) const;

  Policy& policy_;
  std::string name_;
  PolicyOrigin origin_;
  /// By phase, from the first answer behind plan_memory() on.
  std::array<std::optional<Pipeline>, 2> pipelines_;
  const CostModel* costs_ = nullptr;
  Workload workload_;
  HostTiers host_tiers_;
  bool uses_gpu_ = true;  ///< as plan_memory() answered
  bool lacked_device_ = false;
};

}  // namespace sluice
