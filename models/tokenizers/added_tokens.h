#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/tokenizers/json_field.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pattern.h"

namespace sluice::tokenizers {

/// A token that is looked for in the text before the model sees it.
struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it along
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< looked for in normalized text
  bool special = false;      ///< left out of decoded text
};

/// Reads {"id", "content", "single_word", ...}; `id` overrides the field's.
AddedToken make_added_token(const JsonField& field, std::optional<std::int32_t> id = std::nullopt);

/// Finds added tokens in text: at each place the longest, from left to right. Immutable once
/// filled.
class AddedTokenSet {
 public:
  struct Part {
    Span span;
    const AddedToken* token;  ///< null: text between tokens
  };

  /// Takes all tokens at once; `normalizer` may be null.
  AddedTokenSet(std::vector<AddedToken> tokens, const Normalizer* normalizer);
  AddedTokenSet(AddedTokenSet&&) noexcept = default;
  AddedTokenSet& operator=(AddedTokenSet&&) noexcept = default;
  AddedTokenSet(const AddedTokenSet&) = delete;
  AddedTokenSet& operator=(const AddedTokenSet&) = delete;
  ~AddedTokenSet() = default;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// What the token of this id is written as; empty when it is none of them.
  std::string content_of(std::int32_t id) const;

  /// In text as the user wrote it: the tokens that are not `normalized`. In normalized text: the
  /// others.
  std::vector<Part> split_raw(std::string_view text) const { return split(raw_, text); }
  std::vector<Part> split_normalized(std::string_view text) const {
    return split(normalized_, text);
  }

 private:
  // A tree of bytes; an edge is found under (node, byte).
  struct Tree {
    std::unordered_map<std::uint64_t, std::int32_t> edges;
    std::vector<std::int32_t> token_of_node{-1};  ///< index into tokens_, or -1

    void insert(std::string_view text, std::int32_t token);
    /// The longest token at the start of `text`: (index or -1, bytes).
    std::pair<std::int32_t, std::size_t> longest(std::string_view text) const;
    bool starts_with[256] = {};
  };

  std::vector<Part> split(const Tree& tree, std::string_view text) const;

  std::vector<AddedToken> tokens_;
  Tree raw_;
  Tree normalized_;
};

}  // namespace sluice::tokenizers
