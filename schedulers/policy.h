#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perfmodels/cost_model.h"
#include "perfmodels/footprint.h"
#include "perfmodels/layer_cost.h"
#include "perfmodels/memory_plan.h"
#include "perfmodels/placement.h"
#include "perfmodels/task.h"
#include "schedulers/schedule.h"

namespace sluice {

/// Raised whenever something in this header, in plugin.h or in perfmodels/ changes that a policy's
/// shared object was compiled with. The loader takes no other number.
inline constexpr std::uint32_t policy_api_version = 15;

/// What `--policy-option key=value` gave, in order of the keys. A policy takes what it knows; what
/// nobody took is an error of the user's, reported by the loader.
class PolicyOptions {
 public:
  PolicyOptions() = default;
  explicit PolicyOptions(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  /// The value of `key`, or `fallback`; `key` counts as known from then on.
  std::string take(const std::string& key, const std::string& fallback) {
    known_.push_back(key);
    const auto found = values_.find(key);
    return found == values_.end() ? fallback : found->second;
  }
  /// The value of `key` if it is one of `choices`, the first of them without one. Throws
  /// std::runtime_error that names them, as the next two do.
  std::string take_choice(const std::string& key, const std::vector<std::string>& choices);
  /// "on" or "off".
  bool take_switch(const std::string& key, bool fallback) {
    return take_choice(key, fallback ? std::vector<std::string>{"on", "off"}
                                     : std::vector<std::string>{"off", "on"}) == "on";
  }
  /// A number of [least, most]; nothing when the key was not given.
  std::optional<double> take_number(const std::string& key, double least, double most);
  /// Keys that were given and that nobody has asked for.
  std::vector<std::string> unknown() const;
  /// Keys that were asked for, in the order of asking.
  const std::vector<std::string>& known() const { return known_; }

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> known_;
};

/// Requests that share a chain of tasks in an iteration.
struct SubBatchPlan {
  std::vector<std::int64_t> requests;  ///< ids
};

/// What one iteration runs. A request that is in no sub-batch waits for a later iteration.
struct IterationPlan {
  std::vector<SubBatchPlan> sub_batches;
};

// clang-format off
/// Decides, before tasks exist, what lives where and runs where. One is made for a run; all calls
/// come from the thread that submits, in this order:
///
/// | call           | when                                                                             | default                                          |
/// |----------------|----------------------------------------------------------------------------------|--------------------------------------------------|
/// | configure      | once, before anything else                                                       | keeps nothing                                    |
/// | start          | when model, machine and workload are known; again when one of them is another    | stores them                                      |
/// | plan_memory    | once after each start, before any weight is loaded                               | weights and KV in DDR, in HBM without a CPU      |
/// | pipeline       | at least once a phase, after plan_memory                                         | whole batch, overlapping                         |
/// | schedule       | before each iteration where requests come and KV grows (serve, replay)           | nothing: the engine's own rule                   |
/// | plan_iteration | before each other iteration, and where schedule() answers nothing                | all requests in one sub-batch                    |
/// | place          | for each layer of each sub-batch of an iteration, before its tasks are submitted | LIA's equation 1, transfers beside computation   |
///
/// A policy overrides what it cares about. It may throw std::runtime_error with one line that says
/// what it cannot do and which knob to turn.
// clang-format on
class Policy {
 public:
  Policy() = default;
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  virtual void configure(PolicyOptions& options);
  /// `costs` outlives the policy's next start().
  virtual void start(const CostModel& costs, const Workload& workload);
  virtual MemoryPlan plan_memory();
  virtual Pipeline pipeline(Phase phase);
  /// p of one layer, given where its data lives. Asked for each kind of requests in a sub-batch
  /// (one phase, one home of KV); sublayers 2 and 3 follow the answer for their kind, the others
  /// the first one's.
  virtual Placement place(std::int64_t layer, const BatchShape& shape, const LayerHomes& homes);
  /// Who runs, who makes way, what moves, and what the next iteration computes. Nothing: the
  /// engine admits by priority and arrival while there is room, gives the next tokens of running
  /// requests rows first and then prompts, and lets the latest make way where pages run out; then
  /// it asks plan_iteration().
  virtual std::optional<Schedule> schedule(const Situation& situation);
  virtual IterationPlan plan_iteration(const std::vector<RequestView>& requests);

 protected:
  /// Throws std::runtime_error before start(), and where a start() of one's own does not call
  /// Policy's.
  const CostModel& costs() const {
    if (costs_ == nullptr) refuse_costs();
    return *costs_;
  }
  const Workload& workload() const { return workload_; }
  const ModelDimensions& model() const { return costs().model(); }
  /// LIA's equation 1 by the cost model (best_placement()).
  Placement best(const BatchShape& shape, const LayerHomes& homes, Overlap overlap);

  /// What pipeline() answers, by phase: the whole batch at once, overlapping, until plan_memory()
  /// says otherwise.
  std::array<Pipeline, 2> pipelines_{};

 private:
  friend class CheckedPolicy;

  /// Until the next start(): those of the last one may be gone.
  void take_costs_away() { costs_ = nullptr; }
  [[noreturn]] static void refuse_costs();

  /// The last answer of best(): neighbouring layers mostly ask the same.
  struct Placed {
    BatchShape shape;
    LayerHomes homes;
    Overlap overlap = Overlap::none;
    Placement placement{Device::cpu};
  };

  const CostModel* costs_ = nullptr;
  Workload workload_;
  std::optional<Placed> placed_;
};

}  // namespace sluice
