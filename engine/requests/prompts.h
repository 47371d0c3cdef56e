#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/requests/request_fields.h"

namespace sluice {

/// One line of a prompts file.
struct PromptLine {
  std::int64_t line = 0;  ///< from 1
  std::string id;         ///< the line's "id" (text or number), or its number
  std::string prompt;
  std::vector<std::int32_t> prompt_token_ids;  ///< given instead of "prompt"; else empty
  RequestFields fields = {};         ///< its stop tokens may be outside of the model's vocabulary
  std::optional<int> logprobs = {};  ///< likeliest tokens to give beside each drawn one
};

/// Reads JSON lines: {"id": ..., "prompt": "..."} or {"id": ..., "prompt_token_ids": [...]}, and
/// beside these the fields of RequestFields and "logprobs", a number. Empty lines are skipped,
/// other fields ignored, unless their name looks like a known one with a typing error, or is what
/// another program calls one of them. `path` is for messages. Throws Error with path and line:
/// broken JSON, no prompt, an empty one, invalid UTF-8, an id that came before, a wrong field; or
/// when there is no prompt at all.
std::vector<PromptLine> parse_prompts(std::string_view text, const std::string& path);

/// The same from a file ("-": standard input).
std::vector<PromptLine> read_prompts(const std::string& path);

}  // namespace sluice
