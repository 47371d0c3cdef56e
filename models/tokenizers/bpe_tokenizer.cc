#include "models/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "models/tokenizers/added_token_list.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/bpe.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/post_processor.h"
#include "models/tokenizers/pre_tokenizer.h"

namespace sluice::tokenizers {
namespace {

struct Parts {
  std::unique_ptr<Normalizer> normalizer;       ///< may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  ///< may be null
  Bpe model;
  Decoder decoder;
  std::vector<AddedToken> added_tokens;
  std::unordered_set<std::string> special_contents;
  Template around;
};

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Parts parts, const std::string& path)
      : normalizer_(std::move(parts.normalizer)),
        pre_tokenizer_(std::move(parts.pre_tokenizer)),
        model_(std::move(parts.model)),
        added_(std::move(parts.added_tokens), normalizer_.get()),
        around_(std::move(parts.around)),
        strips_leading_space_(parts.decoder.strips_leading_space()) {
    fill_entries(parts, path);
    for (const auto& ids : {around_.before, around_.after}) {
      for (const std::int32_t id : ids) {
        if (entry(id) == nullptr)
          throw Error("{}: post_processor adds the token {}, which does not exist", path, id);
      }
    }
  }

  std::vector<std::int32_t> encode(std::string_view text, SpecialTokens special) const override {
    if (const auto at = find_invalid_utf8(text))
      throw Error("the text is not UTF-8 at byte {}", *at);
    std::vector<std::int32_t> ids;
    Bpe::Scratch scratch;
    if (special == SpecialTokens::add) ids = around_.before;
    for (const auto& part : added_.split_raw(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encode_raw(part.span.of(text), part.span.begin == 0, ids, scratch);
      }
    }
    if (special == SpecialTokens::add) {
      warn_about_second_bos(around_.before, ids);
      ids.insert(ids.end(), around_.after.begin(), around_.after.end());
    }
    return ids;
  }

  std::string token_bytes(std::int32_t id) const override {
    const Entry* found = entry(id);
    return found == nullptr || found->is_special ? std::string() : found->bytes;
  }

  std::string piece(std::int32_t id) const override {
    const Entry* found = entry(id);
    return std::string(found == nullptr ? std::string_view() : found->piece);
  }

  bool strips_leading_space() const override { return strips_leading_space_; }

  bool is_special(std::int32_t id) const override {
    const Entry* found = entry(id);
    return found != nullptr && found->is_special;
  }
  std::string special_text(std::int32_t id) const override {
    return is_special(id) ? added_.content_of(id) : std::string();
  }

  std::int32_t vocab_size() const override {
    return static_cast<std::int32_t>(entry_of_id_.size());
  }

 private:
  struct Entry {
    std::string bytes;
    std::string_view piece;  ///< a key of the vocabulary, or an added token's content
    bool is_special = false;
  };

  const Entry* entry(std::int32_t id) const {
    if (id < 0 || id >= vocab_size() || entry_of_id_[id] < 0) return nullptr;
    return &entries_[entry_of_id_[id]];
  }

  void add_entry(std::int32_t id, Entry entry) {
    if (static_cast<std::size_t>(id) >= entry_of_id_.size())
      entry_of_id_.resize(static_cast<std::size_t>(id) + 1, -1);
    entry_of_id_[id] = static_cast<std::int32_t>(entries_.size());
    entries_.push_back(std::move(entry));
  }

  void fill_entries(const Parts& parts, const std::string& path) {
    entries_.reserve(model_.vocab().size() + added_.tokens().size());
    for (const auto& [token, id] : model_.vocab()) {
      if (entry(id) != nullptr)
        throw Error("{}: two tokens have the id {}; one of them is {}", path, id, quote(token));
      add_entry(id, {parts.decoder.token_bytes(token), token, false});
    }
    // Where a hole in the vocabulary gave an added token an id that the model has, it is the added
    // one that is decoded, as in Hugging Face's.
    for (const AddedToken& token : added_.tokens()) {
      add_entry(token.id, {parts.decoder.token_bytes(token.content), token.content,
                           parts.special_contents.contains(token.content)});
    }
  }

  /// `text` holds no added token that is looked for before normalization.
  void encode_raw(std::string_view text, bool at_start, std::vector<std::int32_t>& ids,
                  Bpe::Scratch& scratch) const {
    const std::string normalized =
        normalizer_ ? normalizer_->normalize(std::string(text)) : std::string();
    const std::string_view view = normalizer_ ? std::string_view(normalized) : text;
    for (const auto& part : added_.split_normalized(view)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
        continue;
      }
      const std::string_view rest = part.span.of(view);
      if (!pre_tokenizer_) {
        model_.encode(rest, ids, scratch);
        continue;
      }
      Pieces pieces{std::string(rest), {{0, rest.size()}}, at_start && part.span.begin == 0};
      pre_tokenizer_->apply(pieces);
      for (const Span& span : pieces.spans) model_.encode(span.of(pieces.text), ids, scratch);
    }
  }

  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  Bpe model_;
  AddedTokenSet added_;
  Template around_;
  bool strips_leading_space_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> entry_of_id_;  ///< -1: no such token
};

// --- what a class of Transformers puts in place of tokenizer.json's parts

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581

/// Special tokens that a class has where tokenizer_config.json does not speak of them.
std::vector<std::pair<std::string, std::string>> default_tokens(TokenizerClass tokenizer_class) {
  const std::string end = "<|endoftext|>";
  switch (tokenizer_class) {
    case TokenizerClass::llama:
    case TokenizerClass::code_llama:
      return {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
    case TokenizerClass::gpt2:
      return {{"unk_token", end}, {"bos_token", end}, {"eos_token", end}};
    case TokenizerClass::gpt_neox:
      return {
          {"unk_token", end}, {"bos_token", end}, {"eos_token", end}, {"pad_token", "<|padding|>"}};
    case TokenizerClass::qwen2:
      return {{"unk_token", end}, {"eos_token", end}, {"pad_token", end}};
    case TokenizerClass::as_file:
      break;
  }
  return {};
}

TokenizerConfig with_defaults(TokenizerConfig config, TokenizerClass tokenizer_class) {
  for (const auto& [key, content] : default_tokens(tokenizer_class)) {
    if (config.named_keys.contains(key)) continue;
    if (key == "bos_token") config.bos_token = content;
    if (key == "eos_token") config.eos_token = content;
    AddedToken token;
    token.content = content;
    token.special = true;
    config.special_tokens.push_back(token);
  }
  return config;
}

/// The options of a class's own BPE; nothing when the file's count.
std::optional<BpeOptions> class_options(TokenizerClass tokenizer_class,
                                        const TokenizerConfig& config) {
  BpeOptions options;
  switch (tokenizer_class) {
    case TokenizerClass::as_file:
      return std::nullopt;
    case TokenizerClass::code_llama:
      options.unk_token = config.unk_token.value_or("<unk>");
      [[fallthrough]];
    case TokenizerClass::llama:
      options.fuse_unk = true;
      options.byte_fallback = true;
      break;
    default:
      break;
  }
  return options;
}

std::unique_ptr<PreTokenizer> class_pre_tokenizer(TokenizerClass tokenizer_class,
                                                  const TokenizerConfig& config) {
  const bool wants_prefix = config.add_prefix_space.value_or(
      tokenizer_class == TokenizerClass::llama || tokenizer_class == TokenizerClass::code_llama);
  if (tokenizer_class == TokenizerClass::llama || tokenizer_class == TokenizerClass::code_llama) {
    const bool every_piece =
        tokenizer_class == TokenizerClass::llama && config.legacy.value_or(false);
    const auto prefix = every_piece ? MetaspacePrefix::always : MetaspacePrefix::first;
    return make_metaspace(std::string(space_mark), wants_prefix ? prefix : MetaspacePrefix::never);
  }
  if (tokenizer_class == TokenizerClass::qwen2) return make_qwen2_pre_tokenizer(wants_prefix);
  return make_byte_level(wants_prefix);
}

Decoder class_decoder(TokenizerClass tokenizer_class, const TokenizerConfig& config) {
  if (tokenizer_class == TokenizerClass::code_llama) return Decoder::sentencepiece();
  if (tokenizer_class == TokenizerClass::llama) {
    return config.add_prefix_space.value_or(true) ? Decoder::sentencepiece()
                                                  : Decoder::sentencepiece_without_prefix();
  }
  return Decoder::byte_level();
}

std::unique_ptr<Normalizer> class_normalizer(TokenizerClass tokenizer_class) {
  const bool composes =
      tokenizer_class == TokenizerClass::qwen2 || tokenizer_class == TokenizerClass::gpt_neox;
  return composes ? make_nfc() : nullptr;
}

// --- added tokens

using Contents = std::unordered_set<std::string>;

/// tokenizer_config.json's special tokens. One whose text is not in the model, among the added
/// tokens or in tokenizer.json is left out: the weights have no row for it. Those that are added
/// tokens keep their flags; bos_token and the like become special where the config (or, without
/// added_tokens_decoder, any file) lists them.
void add_special_tokens(const TokenizerConfig& config, const Contents& in_file,
                        AddedTokenList& tokens) {
  std::unordered_set<std::string_view> listed;
  for (const AddedToken& token : config.added_tokens) listed.insert(token.content);
  for (AddedToken token : config.special_tokens) {
    if (!tokens.find(token.content) && !in_file.contains(token.content)) continue;
    if (const AddedToken* known = tokens.find_token(token.content)) {
      const bool becomes_special =
          !config.extra_contents.contains(token.content) &&
          (!config.has_added_tokens_decoder || listed.contains(token.content));
      if (!becomes_special) continue;
      token = *known;
    }
    token.special = true;
    token.id = -1;
    tokens.add(std::move(token));
  }
}

/// Qwen2Tokenizer adds its special tokens once more, with no flag set.
void reset_special_tokens(const TokenizerConfig& config, AddedTokenList& tokens) {
  for (const AddedToken& token : config.special_tokens) {
    if (!tokens.find(token.content)) continue;
    AddedToken plain;
    plain.content = token.content;
    plain.special = true;
    tokens.add(std::move(plain));
  }
}

std::vector<AddedToken> tokens_of_file(const JsonField& root) {
  std::vector<AddedToken> out;
  if (const auto added = root.find("added_tokens")) {
    for (std::size_t i = 0; i < added->size(); ++i) out.push_back(make_added_token(added->item(i)));
  }
  return out;
}

Contents contents_of(const std::vector<AddedToken>& tokens) {
  Contents out;
  for (const AddedToken& token : tokens) out.insert(token.content);
  return out;
}

void add_all(const std::vector<AddedToken>& added, AddedTokenList& tokens) {
  for (const AddedToken& token : added) tokens.add(token);
}

/// Moves the tokens into `parts`, whose model they refer to.
void finish(AddedTokenList tokens, Parts& parts) {
  for (const auto& content : tokens.special_contents()) parts.special_contents.insert(content);
  parts.added_tokens = tokens.take();
}

// --- BOS and EOS

std::vector<std::int32_t> ids_of(const std::optional<std::string>& content,
                                 const AddedTokenList& tokens) {
  if (!content) return {};
  const auto id = tokens.find(*content);
  return id ? std::vector{*id} : std::vector<std::int32_t>();
}

/// A template of BOS and EOS alone, as Transformers builds it from the flags.
Template template_of_flags(const TokenizerConfig& config, const AddedTokenList& tokens,
                           const std::string& path) {
  Template around;
  if (config.add_bos_token.value_or(false)) around.before = ids_of(config.bos_token, tokens);
  if (config.add_eos_token.value_or(false)) around.after = ids_of(config.eos_token, tokens);
  if (config.add_bos_token.value_or(false) && around.before.empty()) {
    logger().warn("{}: add_bos_token is true, but there is no bos_token: none is put in front",
                  path);
  }
  if (config.add_eos_token.value_or(false) && around.after.empty()) {
    logger().warn("{}: add_eos_token is true, but there is no eos_token: none is put behind", path);
  }
  return around;
}

/// Says when tokenizer_config.json's flags want another thing than tokenizer.json's post_processor
/// does. Transformers 5 leaves the flags aside where there is a tokenizer.json; 4 goes by them.
void warn_about_flags(const TokenizerConfig& config, const Template& around,
                      const std::string& path) {
  const auto check = [&](const char* flag, const std::optional<bool>& wanted,
                         const std::vector<std::int32_t>& ids, const char* where) {
    if (!wanted || *wanted == !ids.empty()) return;
    logger().warn(
        "{}: its post_processor puts {} {} a text, although tokenizer_config.json has {} {}; the "
        "post_processor counts (as in Transformers 5; version 4 goes by the flag for some classes)",
        path, ids.empty() ? "nothing" : fmt::format("the token {}", ids.front()), where, flag,
        *wanted);
  };
  check("add_bos_token", config.add_bos_token, around.before, "before");
  check("add_eos_token", config.add_eos_token, around.after, "after");
}

Template template_of_file(const JsonField& root, TokenizerClass tokenizer_class,
                          const TokenizerConfig& config, const AddedTokenList& tokens) {
  Template around;
  if (tokenizer_class == TokenizerClass::gpt_neox) return around;
  if (tokenizer_class == TokenizerClass::code_llama) {
    around.before = ids_of(config.bos_token, tokens);
  } else if (const auto processor = root.find("post_processor")) {
    around = make_template(*processor);
  }
  return around;
}

// --- tokenizer.json

/// Whether a component, or one in a Sequence of them, is ByteLevel.
bool has_byte_level(const std::optional<JsonField>& field, const std::string& list) {
  if (!field || !field->value().is_object()) return false;
  const std::string type = field->text_or("type", "");
  if (type == "ByteLevel") return true;
  if (type != "Sequence") return false;
  const JsonField items = field->at(list);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const nlohmann::json& item = items.item(i).value();
    if (item.is_object() && item.value("type", nlohmann::json()) == "ByteLevel") return true;
  }
  return false;
}

Parts parts_of_file(const JsonField& root) {
  return {make_normalizer(root.find("normalizer")),
          make_pre_tokenizer(root.find("pre_tokenizer")),
          make_bpe(root.at("model")),
          Decoder(root.find("decoder")),
          {},
          {},
          {}};
}

Parts parts_of_class(TokenizerClass tokenizer_class, const TokenizerConfig& config, Bpe model) {
  return {class_normalizer(tokenizer_class),
          class_pre_tokenizer(tokenizer_class, config),
          std::move(model),
          class_decoder(tokenizer_class, config),
          {},
          {},
          {}};
}

// --- vocab.json and merges.txt

std::string read_file(const ModelFiles& files, const std::string& name) {
  auto text = files.read(name);
  if (!text) throw Error("{}: no such file", files.path(name));
  return *std::move(text);
}

std::vector<std::pair<std::string, std::string>> parse_merges(std::string_view text,
                                                              const std::string& path) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      throw Error("{}: line {} is {}, expected two tokens", path, number, quote(line));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

/// The class that stands in tokenizer_config.json, else the one for the model's type, else GPT-2's.
TokenizerClass class_of_vocab(const TokenizerConfig& config, const ModelHint& hint,
                              const ModelFiles& files) {
  TokenizerClass chosen = choose_class(config.tokenizer_class, hint, false);
  if (chosen == TokenizerClass::as_file) chosen = class_named(config.tokenizer_class);
  const bool is_silent = config.tokenizer_class.empty() && hint.tokenizer_class.empty();
  if (is_silent && hint.model_type.empty()) return TokenizerClass::gpt2;
  if (chosen == TokenizerClass::gpt2 || chosen == TokenizerClass::qwen2) return chosen;
  const std::string what =
      is_silent ? fmt::format("model_type {}", quote(hint.model_type))
                : fmt::format("tokenizer_class {}",
                              quote(config.tokenizer_class.empty() ? hint.tokenizer_class
                                                                   : config.tokenizer_class));
  throw Error(
      "{}: {} without tokenizer.json is not supported (GPT2Tokenizer and Qwen2Tokenizer are); save "
      "it with transformers' save_pretrained() to get a tokenizer.json",
      files.path(config.tokenizer_class.empty() ? "config.json" : "tokenizer_config.json"), what);
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view json, const std::string& path,
                                                    const TokenizerConfig& read_config,
                                                    const ModelHint& hint) {
  const nlohmann::json document = parse_json(json, path, DuplicateKeys::last_wins);
  const JsonField root(document, path);
  const bool is_byte_level = has_byte_level(root.find("pre_tokenizer"), "pretokenizers") ||
                             has_byte_level(root.find("decoder"), "decoders");
  const TokenizerClass tokenizer_class =
      choose_class(read_config.tokenizer_class, hint, is_byte_level);
  const TokenizerConfig config = with_defaults(read_config, tokenizer_class);
  Parts parts =
      tokenizer_class == TokenizerClass::as_file
          ? parts_of_file(root)
          : parts_of_class(tokenizer_class, config,
                           make_bpe(root.at("model"), class_options(tokenizer_class, config)));
  AddedTokenList tokens(parts.model, path);
  // A class with parts of its own takes tokenizer.json's list only where there is no other.
  const std::vector<AddedToken> in_file = tokens_of_file(root);
  if (tokenizer_class == TokenizerClass::as_file || !config.has_added_tokens_decoder)
    add_all(in_file, tokens);
  add_all(config.added_tokens, tokens);
  add_special_tokens(config, contents_of(in_file), tokens);
  if (tokenizer_class == TokenizerClass::qwen2) reset_special_tokens(config, tokens);
  parts.around = template_of_file(root, tokenizer_class, config, tokens);
  warn_about_flags(config, parts.around, path);
  finish(std::move(tokens), parts);
  return std::make_unique<BpeTokenizer>(std::move(parts), path);
}

std::unique_ptr<Tokenizer> make_tokenizer_from_vocab_and_merges(const ModelFiles& files) {
  const std::string path = files.path("vocab.json");
  const TokenizerConfig read_config = read_tokenizer_config(files);
  const TokenizerClass tokenizer_class = class_of_vocab(read_config, read_model_hint(files), files);
  const TokenizerConfig config = with_defaults(read_config, tokenizer_class);
  const nlohmann::json vocab =
      parse_json(read_file(files, "vocab.json"), path, DuplicateKeys::last_wins);
  const auto merges = parse_merges(read_file(files, "merges.txt"), files.path("merges.txt"));
  Parts parts =
      parts_of_class(tokenizer_class, config,
                     Bpe(make_vocab(JsonField(vocab, path)), merges,
                         *class_options(tokenizer_class, config), files.path("merges.txt")));
  AddedTokenList tokens(parts.model, files.path("tokenizer_config.json"));
  add_all(config.added_tokens, tokens);
  add_special_tokens(config, {}, tokens);
  if (tokenizer_class == TokenizerClass::qwen2) reset_special_tokens(config, tokens);
  parts.around = template_of_flags(config, tokens, files.path("tokenizer_config.json"));
  finish(std::move(tokens), parts);
  return std::make_unique<BpeTokenizer>(std::move(parts), path);
}

}  // namespace sluice::tokenizers
