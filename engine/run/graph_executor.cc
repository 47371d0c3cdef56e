#include "engine/run/graph_executor.h"

#include <utility>

#include "codelets/runtime/runtime.h"

namespace sluice {

void GraphExecutor::submit(const std::vector<SubBatch>& sub_batches,
                           const std::vector<KvMove>& moves) {
  pending_.push_back(graph_.submit(sub_batches, DecoderGraph::Logits::drop, moves));
}

std::vector<SubBatchResults> GraphExecutor::wait() {
  const std::vector<PendingIteration> oldest = std::move(pending_.front());
  pending_.pop_front();
  std::vector<SubBatchResults> results;
  results.reserve(oldest.size());
  for (const PendingIteration& sub_batch : oldest) {
    std::vector<std::int32_t> tokens = sub_batch.tokens();
    results.push_back({std::move(tokens), sub_batch.logprobs(), sub_batch.prompt_logprobs()});
  }
  return results;
}

void GraphExecutor::rest(const std::function<void()>& wait) { rest_workers(wait); }

double GraphExecutor::now_s() const { return run_clock_s(); }

void GraphExecutor::sleep_until(double time_s) { sleep_until_run_clock(time_s); }

}  // namespace sluice
