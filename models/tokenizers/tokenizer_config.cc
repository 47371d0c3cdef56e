#include "models/tokenizers/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/json.h"
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

void read_special_tokens(const JsonField& root, TokenizerConfig& config) {
  const auto add = [&](const AddedToken& token) {
    const auto same = [&](const AddedToken& other) { return other.content == token.content; };
    if (std::none_of(config.special_tokens.begin(), config.special_tokens.end(), same)) {
      config.special_tokens.push_back(token);
    }
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    const auto field = root.find(key);
    if (!field) continue;
    const AddedToken token = read_special_token(*field);
    if (std::string_view(key) == "bos_token" && !config.bos_token) config.bos_token = token.content;
    if (std::string_view(key) == "eos_token" && !config.eos_token) config.eos_token = token.content;
    add(token);
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = root.find(key);
    if (!list || !list->value().is_array()) continue;
    for (std::size_t i = 0; i < list->size(); ++i) add(read_special_token(list->item(i)));
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
  if (const auto decoder = root.find("added_tokens_decoder")) read_added_tokens(*decoder, config);
}

}  // namespace

TokenizerConfig read_tokenizer_config(const ModelFiles& files) {
  TokenizerConfig config;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto text = files.read(name);
    if (!text) continue;
    const nlohmann::json json = parse_json(*text, files.path(name), DuplicateKeys::last_wins);
    const JsonField root(json, files.path(name));
    if (std::string_view(name) == "tokenizer_config.json") read_config_file(root, config);
    read_special_tokens(root, config);
  }
  if (const auto text = files.read("added_tokens.json")) {
    const nlohmann::json json =
        parse_json(*text, files.path("added_tokens.json"), DuplicateKeys::last_wins);
    for (const auto& [content, id] : make_vocab(JsonField(json, files.path("added_tokens.json")))) {
      AddedToken token;
      token.id = id;
      token.content = content;
      const auto same = [&, known = id](const AddedToken& other) { return other.id == known; };
      if (std::none_of(config.added_tokens.begin(), config.added_tokens.end(), same)) {
        config.added_tokens.push_back(token);
      }
    }
  }
  return config;
}

}  // namespace sluice::tokenizers
