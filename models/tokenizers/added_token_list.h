#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/bpe.h"

namespace sluice::tokenizers {

/// The added tokens in the making, by the rules of Hugging Face's tokenizers: a token whose text
/// the model or an earlier token has keeps that id; any other gets the next free one, whatever id
/// the file gives it. The flags of the last of two with one text count.
class AddedTokenList {
 public:
  /// `where` begins warnings about ids that are not the file's.
  AddedTokenList(const Bpe& model, std::string where) : model_(&model), where_(std::move(where)) {}

  std::optional<std::int32_t> find(const std::string& content) const;
  /// Flags and text of an added token, or null.
  const AddedToken* find_token(const std::string& content) const;
  void add(AddedToken token);
  /// The texts that were ever added as special ones.
  const std::unordered_set<std::string>& special_contents() const { return special_; }

  /// In the order in which they were added first.
  std::vector<AddedToken> take() { return std::move(tokens_); }

 private:
  std::int32_t next_id() const;

  const Bpe* model_;
  std::string where_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::size_t> index_;
  std::unordered_set<std::string> special_;
  std::int32_t highest_id_ = -1;
  bool has_warned_ = false;
};

}  // namespace sluice::tokenizers
