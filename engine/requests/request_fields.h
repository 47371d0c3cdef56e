#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/requests/fields.h"
#include "engine/requests/request.h"

namespace sluice {

/// What a request says of how it is to be continued, named as OpenAI's and vLLM's servers name it:
/// in the server's bodies and in the lines of a prompts file. What it does not say is left to the
/// reader.
struct RequestFields {
  // max_tokens, or max_completion_tokens, which counts where both are given:
  std::optional<std::int64_t> max_tokens;
  const char* max_tokens_name = "max_tokens";
  std::optional<std::int64_t> min_tokens;
  std::optional<std::int64_t> num_outputs;  ///< n
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<int> top_k;  ///< 0: off
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<std::uint64_t> seed;
  std::optional<std::vector<std::string>> stop;  ///< none empty
  std::vector<std::int32_t> stop_tokens;
  std::optional<bool> ignore_eos;
  std::optional<int> priority;

  /// Puts what is given in place of the request's own, all but both token limits. Stop texts and
  /// tokens come behind those that the request has.
  void apply_to(Request& request) const;
};

struct RequestFieldBounds {
  std::int64_t vocab_size = 0;  ///< of stop_token_ids
  std::int64_t least_max_tokens = 1;
};

/// Throws FieldError.
RequestFields read_request_fields(const Fields& fields, const RequestFieldBounds& bounds);

/// A number of likeliest tokens to give beside each. Throws FieldError.
std::optional<int> read_logprobs_count(const Fields& fields, const std::string& name);

}  // namespace sluice
