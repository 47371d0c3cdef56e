#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "models/files.h"
#include "models/tokenizers/added_tokens.h"

namespace sluice::tokenizers {

/// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say. All of it is
/// optional.
struct TokenizerConfig {
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> legacy;
  std::string tokenizer_class;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> unk_token;
  /// "bos_token" and the like that are there, null or not.
  std::unordered_set<std::string> named_keys;
  /// Whether tokenizer_config.json has "added_tokens_decoder". If so, special_tokens_map.json and
  /// added_tokens.json are left aside.
  bool has_added_tokens_decoder = false;
  /// bos, eos, unk, pad and additional ones; `id` is not known (-1).
  std::vector<AddedToken> special_tokens;
  /// The texts among them that are additional ones only.
  std::unordered_set<std::string> extra_contents;
  /// From "added_tokens_decoder" or added_tokens.json, by id.
  std::vector<AddedToken> added_tokens;
};

/// Reads the files that are there. Throws Error with file and field when one is malformed.
TokenizerConfig read_tokenizer_config(const ModelFiles& files);

/// Says once when a text begins with BOS itself: `ids` has `before`, what is put in front of every
/// text, and then the same once more.
void warn_about_second_bos(const std::vector<std::int32_t>& before,
                           const std::vector<std::int32_t>& ids);

}  // namespace sluice::tokenizers
