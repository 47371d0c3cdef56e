#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codelets/logprobs/logprobs.h"
#include "models/config.h"
#include "perfmodels/footprint.h"

namespace sluice {

/// How the tokens of one request are drawn, and when it ends.
struct SamplingParams {
  float temperature = 0.0F;  ///< 0: greedy
  int top_k = 0;             ///< 0: off
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;  ///< of tokens in prompt and output
  float presence_penalty = 0.0F;    ///< taken off the logit of each token that the output has
  float frequency_penalty = 0.0F;   ///< taken off as often as the output has it
  std::uint64_t seed = 0;
};

/// New tokens that a model has positions for behind a prompt: the last one that is drawn needs
/// none.
std::int64_t most_new_tokens(const ModelConfig& config, std::int64_t prompt_tokens);
/// Throws Error when a model has too few positions for what is planned or simulated: a run would
/// end early, and look faster than it is.
void check_length(const ModelConfig& config, const Workload& workload);

/// One prompt to continue.
struct Request {
  std::int64_t index = 0;  ///< place in the input
  std::string id;
  std::string prompt;
  std::vector<std::int32_t> prompt_tokens;
  std::int64_t max_new_tokens = 128;
  bool ignore_eos = false;
  std::int64_t num_outputs = 1;           ///< that continue the prompt, each by draws of its own
  std::vector<std::string> stop;          ///< texts that end the output, none empty; no part of it
  std::vector<std::int32_t> stop_tokens;  ///< tokens that end the output; no part of its text
  /// Tokens that come before an end-of-sequence token may; a stop text ends the output earlier.
  std::int64_t min_new_tokens = 0;
  SamplingParams sampling;
  std::optional<int> logprobs;         ///< likeliest tokens to give beside each drawn one
  std::optional<int> prompt_logprobs;  ///< the same for each prompt token but the first
  int priority = 0;                    ///< a lower one goes first
  /// By the run's clock; nothing: when the engine takes it.
  std::optional<double> arrival_s;
};

enum class FinishReason : std::uint8_t {
  stop,         ///< an end-of-sequence token, a stop token or a stop text
  length,       ///< all tokens that it may have
  interrupted,  ///< the run ends
  cancelled,    ///< nobody wants it any more
  rejected,     ///< it can never run: Completion::problem says why
};
const char* to_string(FinishReason reason);

/// What became of one output of a request.
struct Completion {
  std::shared_ptr<const Request> request;
  std::int64_t output = 0;              ///< of Request::num_outputs
  std::vector<std::int32_t> token_ids;  ///< without the end-of-sequence token
  std::string text;                     ///< valid UTF-8
  FinishReason finish_reason = FinishReason::stop;
  std::string problem;  ///< where it was rejected
  // Seconds of the run's clock; meaningless where it did not come so far.
  double arrival_s = 0;
  double admitted_s = 0;  ///< to the batch, for the first time
  double first_token_s = 0;
  double last_token_s = 0;
  std::int64_t num_drawn = 0;  ///< token_ids, and what ended it

  /// From arrival; 0 without a token.
  double time_to_first_token_s() const { return num_drawn > 0 ? first_token_s - arrival_s : 0; }
  /// Mean over the tokens after the first; 0 with fewer than two.
  double time_per_output_token_s() const {
    return num_drawn > 1 ? (last_token_s - first_token_s) / static_cast<double>(num_drawn - 1) : 0;
  }
};

/// Tokens that may be drawn for a request: what it asks for, limited by the model's positions.
std::int64_t new_tokens_limit(const Request& request, const ModelConfig& config);
/// Tokens that a request may take of the KV cache, prompt and output together.
std::int64_t kv_tokens(const Request& request, const ModelConfig& config);

}  // namespace sluice
