#include "engine/requests/request.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::interrupted:
      return "interrupted";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::rejected:
      return "rejected";
  }
  return "?";
}

std::int64_t most_new_tokens(const ModelConfig& config, std::int64_t prompt_tokens) {
  return config.max_positions - prompt_tokens + 1;
}

void check_length(const ModelConfig& config, const Workload& workload) {
  const std::int64_t positions = config.max_positions;
  if (workload.input_tokens > positions)
    throw Error("{} tokens in, expected at most the model's {} positions", workload.input_tokens,
                positions);
  const std::int64_t most = most_new_tokens(config, workload.input_tokens);
  if (workload.output_tokens > most)
    throw Error("{} tokens out after {} in, expected at most {}: the model has {} positions",
                workload.output_tokens, workload.input_tokens, most, positions);
}

std::int64_t new_tokens_limit(const Request& request, const ModelConfig& config) {
  const auto prompt = static_cast<std::int64_t>(request.prompt_tokens.size());
  return std::min(request.max_new_tokens, most_new_tokens(config, prompt));
}

std::int64_t kv_tokens(const Request& request, const ModelConfig& config) {
  return static_cast<std::int64_t>(request.prompt_tokens.size()) +
         new_tokens_limit(request, config);
}

}  // namespace sluice
