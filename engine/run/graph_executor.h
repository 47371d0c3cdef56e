#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/batching/executor.h"
#include "graphs/decoder_graph.h"

namespace sluice {

/// Computes iterations as StarPU's tasks, real or simulated.
class GraphExecutor : public Executor {
 public:
  /// Model and KV caches outlive it.
  GraphExecutor(const ModelWeights& model, std::span<const KvCache> cohorts,
                const DecoderGraph::Options& options)
      : graph_(model, cohorts, options) {}

  void submit(const std::vector<SubBatch>& sub_batches, const std::vector<KvMove>& moves) override;
  std::vector<SubBatchResults> wait() override;
  void rest(const std::function<void()>& wait) override;
  double now_s() const override;
  void sleep_until(double time_s) override;

 private:
  DecoderGraph graph_;
  std::deque<std::vector<PendingIteration>> pending_;
};

}  // namespace sluice
