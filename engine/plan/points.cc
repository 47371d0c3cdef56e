#include "engine/plan/points.h"

#include <algorithm>

namespace sluice {

std::vector<Workload> PointLists::workloads(std::int64_t max_positions) const {
  std::vector<Workload> all;
  all.reserve(output_tokens.size() * input_tokens.size() * batches.size());
  for (const std::int64_t out : output_tokens) {
    for (const std::int64_t in : input_tokens) {
      for (const std::int64_t batch : batches) all.push_back({batch, in, out});
    }
  }
  if (!are_lengths_defaults) return all;
  for (Workload& workload : all) {
    if (workload.input_tokens + workload.output_tokens <= max_positions) continue;
    workload.output_tokens = std::clamp<std::int64_t>(max_positions / 2, 1, workload.output_tokens);
    workload.input_tokens =
        std::clamp<std::int64_t>(max_positions - workload.output_tokens, 1, workload.input_tokens);
  }
  return all;
}

}  // namespace sluice
