#include "models/tokenizers/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(decode_utf8(last_character(text)));
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_character(decode_utf8(text));
}

}  // namespace

AddedToken make_added_token(const JsonField& field, std::optional<std::int32_t> id) {
  AddedToken token;
  token.id = id ? *id : field.at("id").token_id();
  token.content = field.at("content").text();
  token.single_word = field.boolean_or("single_word", false);
  token.lstrip = field.boolean_or("lstrip", false);
  token.rstrip = field.boolean_or("rstrip", false);
  token.special = field.boolean_or("special", false);
  token.normalized = field.boolean_or("normalized", !token.special);
  return token;
}

void AddedTokenSet::Tree::insert(std::string_view text, std::int32_t token) {
  if (text.empty()) return;
  starts_with[static_cast<std::uint8_t>(text[0])] = true;
  std::int32_t node = 0;
  for (const char c : text) {
    const auto next = static_cast<std::int32_t>(token_of_node.size());
    const auto key = static_cast<std::uint64_t>(node) << 8 | static_cast<std::uint8_t>(c);
    const auto [edge, is_new] = edges.try_emplace(key, next);
    if (is_new) token_of_node.push_back(-1);
    node = edge->second;
  }
  token_of_node[static_cast<std::size_t>(node)] = token;
}

std::pair<std::int32_t, std::size_t> AddedTokenSet::Tree::longest(std::string_view text) const {
  std::pair<std::int32_t, std::size_t> best{-1, 0};
  std::int32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto key = static_cast<std::uint64_t>(node) << 8 | static_cast<std::uint8_t>(text[i]);
    const auto edge = edges.find(key);
    if (edge == edges.end()) break;
    node = edge->second;
    const std::int32_t token = token_of_node[static_cast<std::size_t>(node)];
    if (token >= 0) best = {token, i + 1};
  }
  return best;
}

AddedTokenSet::AddedTokenSet(std::vector<AddedToken> tokens, const Normalizer* normalizer)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    const bool changes = token.normalized && normalizer != nullptr;
    (token.normalized ? normalized_ : raw_)
        .insert(changes ? normalizer->normalize(token.content) : token.content,
                static_cast<std::int32_t>(i));
  }
}

std::vector<AddedTokenSet::Part> AddedTokenSet::split(const Tree& tree,
                                                      std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    if (!tree.starts_with[static_cast<std::uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const auto [index, size] = tree.longest(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    std::size_t begin = at;
    std::size_t end = at + size;
    at = end;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (token.lstrip) begin = white_space_at_end(text.substr(0, begin), done);
    if (token.rstrip) end += white_space_at_start(text.substr(end));
    if (done < begin) parts.push_back({{done, begin}, nullptr});
    parts.push_back({{begin, end}, &token});
    done = end;
  }
  if (done != text.size()) parts.push_back({{done, text.size()}, nullptr});
  return parts;
}

std::string AddedTokenSet::content_of(std::int32_t id) const {
  for (const AddedToken& token : tokens_) {
    if (token.id == id) return token.content;
  }
  return {};
}

}  // namespace sluice::tokenizers
