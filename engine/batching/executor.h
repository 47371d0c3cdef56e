#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "codelets/logprobs/logprobs.h"
#include "engine/requests/source.h"
#include "graphs/sub_batch.h"

namespace sluice {

/// What a sub-batch drew; an element for each sequence, in the batch's order.
struct SubBatchResults {
  std::vector<std::int32_t> tokens;
  std::vector<std::optional<TokenLogprobs>> logprobs;            ///< where they were asked for
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs = {};  ///< empty, or of the piece's rows
};

/// Computes iterations: as tasks, or in thought alone.
class Executor : public RunClock {
 public:
  /// Begins an iteration behind those that were begun before, and returns at once. `moves` come
  /// first; one may go where another one was.
  virtual void submit(const std::vector<SubBatch>& sub_batches,
                      const std::vector<KvMove>& moves) = 0;
  /// Calls `wait` while no iteration is under way: nothing need be ready for one.
  virtual void rest(const std::function<void()>& wait) { wait(); }
  /// Waits for the oldest iteration that was begun. Throws Error when a kernel failed.
  virtual std::vector<SubBatchResults> wait() = 0;
};

}  // namespace sluice
