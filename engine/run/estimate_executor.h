#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/batching/executor.h"
#include "engine/batching/policy_run.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/timeline.h"

namespace sluice {

/// Computes nothing: each iteration takes as long as the cost model says of exactly its sequences,
/// on a clock of its own. Every token that it draws is 0, without logprobs.
///
/// - An iteration begins when the one ahead of it has ended, or when it is submitted, if that is
///   later; it lasts as one of a row of its like does (Start::steady).
/// - What moves KV, between pools or to a prompt's later piece, works beside all that: in the time
///   in which its devices and the link have nothing to do. An iteration lasts at least as long as
///   its busiest part works.
class EstimateExecutor : public Executor {
 public:
  /// Both outlive it.
  EstimateExecutor(const CostModel& costs, const PolicyRun& policy)
      : costs_(costs), policy_(policy) {}

  void submit(const std::vector<SubBatch>& sub_batches, const std::vector<KvMove>& moves) override;
  std::vector<SubBatchResults> wait() override;
  double now_s() const override { return now_s_; }
  void sleep_until(double time_s) override;

  /// Of all iterations that were waited for.
  const BusyTimes& busy() const { return busy_; }

  /// Of one iteration; `sub_batches` are placed.
  IterationEstimate estimate(std::span<const SubBatch> sub_batches,
                             std::span<const KvMove> moves) const;

 private:
  struct UnderWay {
    double end_s = 0;
    BusyTimes busy;
    std::vector<SubBatchResults> results;
  };
  std::vector<Chain> chains_of(std::span<const SubBatch> sub_batches, Phase phase) const;
  Chain chain_of(const SubBatch& sub_batch) const;
  BusyTimes busy_with(const KvMove& move) const;
  /// What a prompt's earlier pieces left elsewhere.
  BusyTimes busy_with_cached_pages(const BatchPart& part) const;
  /// A task that moves so many pages of one layer out of a home, or into it.
  void add_task(Tier home, std::int64_t num_pages, BusyTimes& busy) const;

  const CostModel& costs_;
  const PolicyRun& policy_;
  double now_s_ = 0;
  std::deque<UnderWay> under_way_;
  BusyTimes busy_;
};

}  // namespace sluice
