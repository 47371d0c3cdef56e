#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/requests/request.h"
#include "engine/serve/api_error.h"
#include "engine/serve/serve_settings.h"

namespace sluice {

enum class Endpoint : std::uint8_t { completions, chat };

/// What a body of /v1/completions or /v1/chat/completions asks for.
struct OpenAiRequest {
  enum class Usage : std::uint8_t { none, at_end, in_each_chunk };

  Endpoint endpoint = Endpoint::completions;
  std::string model;  ///< as the answer names it
  bool stream = false;
  Usage stream_usage = Usage::none;
  bool echo = false;
  bool return_token_ids = false;
  std::optional<int> logprobs;  ///< likeliest tokens beside each token
  bool wants_output = true;     ///< false: max_tokens is 0, only the prompt comes back
  /// One a prompt; `index` is the place in the body. Where no output is wanted each has one token,
  /// as that is the least that an engine computes.
  std::vector<Request> prompts;

  std::int64_t num_outputs() const {
    return prompts.empty() ? 0 : std::ssize(prompts) * prompts.front().num_outputs;
  }
};

/// A model folder's defaults; a temperature of 1, as OpenAI has it, where it names none.
SamplingParams default_sampling(const GenerationConfig& generation);

/// Reads a body. Null is "not given", and unknown fields are ignored. `seed` is that of a request
/// that brings none. Throws ApiError; whatever the bytes are, nothing else.
OpenAiRequest parse_openai_request(std::string_view body, Endpoint endpoint,
                                   const ServedModel& model, const ServeLimits& limits,
                                   std::uint64_t seed);

/// What a body of /tokenize asks for: a prompt, or messages.
struct TokenizeRequest {
  std::vector<std::int32_t> tokens;
  bool return_token_strs = false;
};
TokenizeRequest parse_tokenize_request(std::string_view body, const ServedModel& model);

/// The tokens of a body of /detokenize.
std::vector<std::int32_t> parse_detokenize_request(std::string_view body, const ServedModel& model);

}  // namespace sluice
