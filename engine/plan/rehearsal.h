#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "perfmodels/footprint.h"
#include "perfmodels/timeline.h"
#include "schedulers/checked_policy.h"

namespace sluice {

/// Requests of one sub-batch that are in one phase and have their KV on one tier.
struct RequestKind {
  BatchShape shape;
  std::optional<Tier> kv;  ///< nothing: the layers' home
};

/// Iterations of the same sub-batches of the same kinds of requests, about as many of each.
struct AlikeIterations {
  Phase phase = Phase::prefill;  ///< prefill: not every request has its first token before them
  std::int64_t count = 0;
  std::vector<std::vector<RequestKind>> sub_batches;  ///< the mean
};

/// Which iterations a policy makes of a run: it is asked as the engine asks it, all requests being
/// there from the start and as long as the workload says. While they only decode it is asked again
/// after an eighth of their tokens; until then every iteration is taken to be like the last one.
class Rehearsal {
 public:
  /// `policy` has planned `memory`. Throws Error when it leaves all requests waiting.
  Rehearsal(CheckedPolicy& policy, const Workload& workload, const MemoryPlan& memory);

  /// In the order in which they first come; the very first iteration is alone. One at least of each
  /// phase: where nothing decodes, of no iteration.
  const std::vector<AlikeIterations>& groups() const { return groups_; }

  /// A request's time from its first token to its last, by the tokens between: the mean of all. At
  /// least two tokens come. `iterations`: one of each group.
  double time_per_output_token_s(std::span<const IterationEstimate> iterations) const;

 private:
  class Run;

  /// Iterations of one group that follow each other.
  struct Step {
    std::size_t group = 0;
    std::int64_t count = 0;
  };

  std::vector<AlikeIterations> groups_;
  std::vector<Step> steps_;
  /// By request: the step that ends with its first token, and the one that ends with its last.
  std::vector<std::size_t> first_steps_;
  std::vector<std::size_t> last_steps_;
  std::int64_t output_tokens_;
};

}  // namespace sluice
