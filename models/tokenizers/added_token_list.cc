#include "models/tokenizers/added_token_list.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"

namespace sluice::tokenizers {

std::optional<std::int32_t> AddedTokenList::find(const std::string& content) const {
  if (const AddedToken* token = find_token(content)) return token->id;
  return model_->find(content);
}

const AddedToken* AddedTokenList::find_token(const std::string& content) const {
  const auto found = index_.find(content);
  return found == index_.end() ? nullptr : &tokens_[found->second];
}

std::int32_t AddedTokenList::next_id() const {
  const auto num_in_model = static_cast<std::int32_t>(model_->vocab().size());
  return std::max(num_in_model, highest_id_ + 1);
}

void AddedTokenList::add(AddedToken token) {
  if (token.content.empty()) return;
  const std::int32_t declared = token.id;
  token.id = find(token.content).value_or(next_id());
  if (declared >= 0 && declared != token.id && !has_warned_) {
    has_warned_ = true;
    logger().warn(
        "{}: the added token {} has the id {} there; it gets the next free one, {}, as in Hugging "
        "Face's tokenizers",
        where_, quote(token.content), declared, token.id);
  }
  highest_id_ = std::max(highest_id_, token.id);
  if (token.special) special_.insert(token.content);
  const auto [at, is_new] = index_.try_emplace(token.content, tokens_.size());
  if (is_new) {
    tokens_.push_back(std::move(token));
  } else {
    tokens_[at->second] = std::move(token);
  }
}

}  // namespace sluice::tokenizers
