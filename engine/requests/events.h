#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/requests/request.h"
#include "perfmodels/task.h"

namespace sluice {

/// One drawn token of a request's output.
struct DrawnToken {
  std::int64_t output = 0;  ///< which of the request's outputs
  std::int64_t index = 0;   ///< in its output, from 0 on
  std::int32_t id = 0;
  const TokenLogprobs* logprobs = nullptr;  ///< where the request asks for them
  bool ends = false;  ///< an end-of-sequence token that the request does not ignore: no part of it
};

/// Whether an output goes on behind a token.
enum class Verdict : std::uint8_t { goes_on, ends };

/// An iteration that has begun.
struct IterationReport {
  struct SubBatch {
    Device device = Device::cpu;     ///< of the first layer's linear sublayers
    Device attention = Device::cpu;  ///< where the first layer attends, of its last part
    std::int64_t prompts = 0;        ///< outputs that compute known tokens
    std::int64_t prompt_rows = 0;
    std::int64_t decodes = 0;  ///< outputs that bring the token drawn last
  };
  std::int64_t number = 0;
  std::vector<SubBatch> sub_batches;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t swapped = 0;  ///< of the running ones, those whose KV is not in the first pool
};

/// What the engine tells, on its own thread, while it computes what comes next.
struct EngineEvents {
  /// An output has its place in the batch, for the first time.
  std::function<void(const Request&, std::int64_t output)> on_admitted = {};
  std::function<void(const IterationReport&)> on_iteration = {};
  /// Before the first token, where the request asks for them: of each prompt token but the first.
  std::function<void(const Request&, std::vector<TokenLogprobs>)> on_prompt_logprobs = {};
  /// Verdict::ends: a stop text is complete. One token more may be computed, and is thrown away.
  std::function<Verdict(const Request&, const DrawnToken&)> on_token = {};
  /// An output is finished; no more is said of it.
  std::function<void(Completion)> on_finished = {};
};

}  // namespace sluice
