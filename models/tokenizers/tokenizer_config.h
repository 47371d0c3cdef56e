#pragma once

#include <optional>
#include <string>
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
  /// bos, eos, unk, pad and additional ones; `id` is not known (-1).
  std::vector<AddedToken> special_tokens;
  /// From "added_tokens_decoder" and added_tokens.json; `id` is known.
  std::vector<AddedToken> added_tokens;
};

/// Reads the files that are there. Throws Error with file and field when one is malformed.
TokenizerConfig read_tokenizer_config(const ModelFiles& files);

}  // namespace sluice::tokenizers
