#include "models/tokenizers/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "models/tokenizers/bpe.h"

namespace sluice::tokenizers {
namespace {

// A token is written as its text, or as {"content": ..., "lstrip": ...}.
AddedToken read_special_token(const JsonField& field) {
  AddedToken token;
  if (field.value().is_string()) {
    token.content = field.text();
  } else {
    token = make_added_token(field, -1);
  }
  token.special = true;
  return token;
}

constexpr const char* special_keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

bool has_special_token(const TokenizerConfig& config, const std::string& content) {
  return std::any_of(config.special_tokens.begin(), config.special_tokens.end(),
                     [&](const AddedToken& token) { return token.content == content; });
}

void add_named_token(const AddedToken& token, TokenizerConfig& config) {
  if (!has_special_token(config, token.content)) config.special_tokens.push_back(token);
  config.extra_contents.erase(token.content);
}

void add_extra_token(const AddedToken& token, TokenizerConfig& config) {
  if (has_special_token(config, token.content)) return;
  config.special_tokens.push_back(token);
  config.extra_contents.insert(token.content);
}

/// A key of two files: the later file's counts.
void read_named_token(const JsonField& root, const std::string& key, TokenizerConfig& config) {
  if (!root.value().contains(key)) return;
  config.named_keys.insert(key);
  const auto field = root.find(key);
  std::optional<std::string> content;
  if (field) {
    const AddedToken token = read_special_token(*field);
    content = token.content;
    add_named_token(token, config);
  }
  if (key == "bos_token") config.bos_token = content;
  if (key == "eos_token") config.eos_token = content;
  if (key == "unk_token") config.unk_token = content;
}

void read_special_tokens(const JsonField& root, TokenizerConfig& config) {
  if (!root.value().is_object()) root.at("bos_token");  // says that it is no object
  for (const char* key : special_keys) read_named_token(root, key, config);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = root.find(key);
    if (!list || !list->value().is_structured()) continue;
    for (const auto& item : list->value().items()) {
      const JsonField token =
          list->value().is_array() ? list->item(std::stoul(item.key())) : list->at(item.key());
      add_extra_token(read_special_token(token), config);
    }
  }
  // A model's own, such as "image_token".
  for (const auto& item : root.value().items()) {
    const bool is_own = item.key().ends_with("_token") && item.value().is_string() &&
                        !config.named_keys.contains(item.key());
    if (is_own) add_named_token(read_special_token(root.at(item.key())), config);
  }
}

void read_added_tokens(const JsonField& decoder, TokenizerConfig& config) {
  if (!decoder.value().is_object())
    throw Error("{}: expected an object of id to token", decoder.where());
  for (const auto& item : decoder.value().items()) {
    const std::string& key = item.key();
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > max_token_id) {
      throw Error("{}: {} is not a token id from 0 to {}", decoder.where(), quote(key),
                  max_token_id);
    }
    config.added_tokens.push_back(make_added_token(decoder.at(key), id));
  }
}

void read_config_file(const JsonField& root, TokenizerConfig& config) {
  const auto flag = [&](const char* key) -> std::optional<bool> {
    const auto field = root.find(key);
    return field ? std::optional(field->boolean()) : std::nullopt;
  };
  config.add_bos_token = flag("add_bos_token");
  config.add_eos_token = flag("add_eos_token");
  config.add_prefix_space = flag("add_prefix_space");
  config.legacy = flag("legacy");
  config.tokenizer_class = root.text_or("tokenizer_class", "");
  if (const auto decoder = root.find("added_tokens_decoder")) {
    config.has_added_tokens_decoder = true;
    read_added_tokens(*decoder, config);
  }
}

/// added_tokens.json: {text: id}.
void read_added_tokens_file(const JsonField& root, TokenizerConfig& config) {
  for (const auto& [content, id] : make_vocab(root)) {
    AddedToken token;
    token.id = id;
    token.content = content;
    token.special = has_special_token(config, content);
    token.normalized = !token.special;
    config.added_tokens.push_back(token);
  }
}

/// Has `read(root, config)` read a file that may be there.
template <typename Read>
void read_if_there(const ModelFiles& files, const std::string& name, Read read,
                   TokenizerConfig& config) {
  const auto text = files.read(name);
  if (!text) return;
  const nlohmann::json json =
      parse_json(quote_non_finite(*text), files.path(name), DuplicateKeys::last_wins);
  read(JsonField(json, files.path(name)), config);
}

}  // namespace

TokenizerConfig read_tokenizer_config(const ModelFiles& files) {
  TokenizerConfig config;
  read_if_there(files, "tokenizer_config.json", read_config_file, config);
  read_if_there(files, "tokenizer_config.json", read_special_tokens, config);
  if (!config.has_added_tokens_decoder) {
    read_if_there(files, "special_tokens_map.json", read_special_tokens, config);
    read_if_there(files, "added_tokens.json", read_added_tokens_file, config);
  }
  std::stable_sort(config.added_tokens.begin(), config.added_tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return config;
}

void warn_about_second_bos(const std::vector<std::int32_t>& before,
                           const std::vector<std::int32_t>& ids) {
  if (before.empty() || ids.size() <= before.size() || ids[before.size()] != before.front()) return;
  const std::string text = fmt::format(
      "a prompt begins with the token {} itself, and the tokenizer puts it before every text: it "
      "stands there twice (leave it out of the prompt, or the tokenizer's with "
      "--no-special-tokens)",
      before.front());
  if (is_first_time(text)) logger().warn("{}", text);
}

}  // namespace sluice::tokenizers
