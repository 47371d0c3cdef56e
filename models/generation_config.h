#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// What a field of generation_config.json does here.
enum class FieldEffect : std::uint8_t {
  done,            ///< as in Transformers
  none,            ///< changes no token here
  output,          ///< would change the output, and is not done
  sampled_output,  ///< the same, but only where tokens are drawn at random
};

/// How Sluice treats a field of Transformers' GenerationConfig; nothing for a field that it does
/// not have, which Transformers ignores, too.
std::optional<FieldEffect> effect_of_field(std::string_view name);

/// A field that would change the output and is not done.
struct FieldNotDone {
  std::string name;
  std::string value;  ///< as JSON, cut when very long
  bool only_sampled = false;
};

/// What a model ships in generation_config.json.
struct GenerationConfig {
  std::string where;  ///< the file, for messages
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<int> top_k;  ///< 0: off
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::vector<std::int32_t> eos_token_ids;  ///< empty: config.json's
  std::optional<std::int64_t> min_new_tokens;
  std::int64_t min_length_tokens = 0;  ///< prompt included; counts without min_new_tokens
  std::vector<std::int32_t> suppress_tokens;
  std::vector<std::int32_t> begin_suppress_tokens;  ///< not as the first new token
  std::vector<std::string> stop_strings;
  std::vector<FieldNotDone> not_done;

  /// Tokens that must come before an end-of-sequence token.
  std::int64_t min_new_tokens_after(std::int64_t prompt_tokens) const;
};

/// Reads generation_config.json, or the same fields of a config.json. `where` names the file.
/// Throws Error: what field, what was found and expected.
GenerationConfig parse_generation_config(std::string_view text, const std::string& where);

/// A line for each field that is not done and would matter: file, field, value, and what to do.
std::vector<std::string> warnings_of(const GenerationConfig& defaults, bool samples);

}  // namespace sluice
