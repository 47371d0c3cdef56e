#include "models/tokenizers/bpe_tokenizer.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/bpe.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pre_tokenizer.h"

namespace sluice::tokenizers {
namespace {

/// Special tokens around the text.
struct Template {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> after;
};

struct Parts {
  std::unique_ptr<Normalizer> normalizer;       ///< may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  ///< may be null
  Bpe model;
  Decoder decoder;
  std::vector<AddedToken> added_tokens;
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
    fill_entries(parts.decoder, path);
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
    if (special == SpecialTokens::add)
      ids.insert(ids.end(), around_.after.begin(), around_.after.end());
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

  void fill_entries(const Decoder& decoder, const std::string& path) {
    entries_.reserve(model_.vocab().size() + added_.tokens().size());
    for (const auto& [token, id] : model_.vocab()) {
      if (entry(id) != nullptr)
        throw Error("{}: two tokens have the id {}; one of them is {}", path, id, quote(token));
      add_entry(id, {decoder.token_bytes(token), token, false});
    }
    std::unordered_set<std::string_view> special;
    for (const AddedToken& token : added_.tokens()) {
      if (token.special) special.insert(token.content);
      const bool in_model = model_.find(token.content) == token.id;
      if (entry(token.id) != nullptr && !in_model) {
        throw Error("{}: two tokens have the id {}; one of them is the added token {}", path,
                    token.id, quote(token.content));
      }
      if (entry(token.id) == nullptr)
        add_entry(token.id, {decoder.token_bytes(token.content), token.content, false});
    }
    for (const AddedToken& token : added_.tokens()) {
      if (special.contains(token.content)) entries_[entry_of_id_[token.id]].is_special = true;
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

// --- tokenizer.json's post_processor
// ---------------------------------------------------------------

void add_template(const JsonField& field, Template& around) {
  const JsonField single = field.at("single");
  Template ours;
  bool seen_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const JsonField piece = single.item(i);
    if (const auto sequence = piece.find("Sequence")) {
      if (seen_text || sequence->at("id").text() != "A") {
        throw Error("{}: expected the sequence A once", single.where());
      }
      seen_text = true;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").text();
    const JsonField ids = field.at("special_tokens").at(name).at("ids");
    for (std::size_t j = 0; j < ids.size(); ++j) {
      (seen_text ? ours.after : ours.before).push_back(ids.item(j).token_id());
    }
  }
  if (!seen_text) throw Error("{}: the sequence A is missing", single.where());
  around.before.insert(around.before.begin(), ours.before.begin(), ours.before.end());
  around.after.insert(around.after.end(), ours.after.begin(), ours.after.end());
}

constexpr int max_nesting = 16;

void add_post_processor(const JsonField& field, int nesting, Template& around) {
  const std::string& type = field.type();
  if (type == "ByteLevel") return;  // only about offsets
  if (type == "TemplateProcessing") {
    add_template(field, around);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    around.before.insert(around.before.begin(), field.at("cls").item(1).token_id());
    around.after.push_back(field.at("sep").item(1).token_id());
  } else if (type == "Sequence") {
    if (nesting == max_nesting)
      throw Error("{}: Sequence nested more than {} deep", field.where(), max_nesting);
    const JsonField items = field.at("processors");
    for (std::size_t i = 0; i < items.size(); ++i)
      add_post_processor(items.item(i), nesting + 1, around);
  } else {
    throw Error(
        "{}: type {} is not supported (BertProcessing, ByteLevel, RobertaProcessing, Sequence, "
        "TemplateProcessing are)",
        field.where(), quote(type));
  }
}

// --- added tokens and tokenizer_config.json
// --------------------------------------------------------

/// The added tokens in the making.
class AddedTokens {
 public:
  explicit AddedTokens(const Bpe& model) : model_(&model) {}

  const AddedToken* find(const std::string& content) const {
    const auto found = index_.find(content);
    return found == index_.end() ? nullptr : &tokens_[found->second];
  }

  /// As Hugging Face's: a token whose text the model knows keeps the model's id; the last of two
  /// wins.
  void add(AddedToken token) {
    if (token.content.empty()) return;
    token.id = model_->find(token.content).value_or(token.id);
    const auto [at, is_new] = index_.try_emplace(token.content, tokens_.size());
    if (is_new) {
      tokens_.push_back(std::move(token));
    } else {
      token.special = token.special || tokens_[at->second].special;
      tokens_[at->second] = std::move(token);
    }
  }

  /// Declares what only tokenizer_config.json knows. Tokens without an id there and in the model
  /// are left out: the weights have no row for them.
  void add_from(const TokenizerConfig& config) {
    for (const AddedToken& token : config.added_tokens) {
      if (find(token.content) == nullptr) add(token);
    }
    for (const AddedToken& token : config.special_tokens) {
      if (find(token.content) == nullptr && model_->find(token.content)) add(token);
    }
  }

  std::vector<AddedToken> take() { return std::move(tokens_); }

 private:
  const Bpe* model_;
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// transformers rebuilds the template when tokenizer_config.json has add_bos_token or
/// add_eos_token.
void apply_config(const TokenizerConfig& config, const Bpe& model, const AddedTokens& tokens,
                  Template& around) {
  const auto ids = [&](const std::optional<std::string>& content) -> std::vector<std::int32_t> {
    if (!content) return {};
    if (const AddedToken* token = tokens.find(*content)) return {token->id};
    if (const auto id = model.find(*content)) return {*id};
    return {};
  };
  if (config.add_bos_token)
    around.before = *config.add_bos_token ? ids(config.bos_token) : std::vector<std::int32_t>();
  if (config.add_eos_token)
    around.after = *config.add_eos_token ? ids(config.eos_token) : std::vector<std::int32_t>();
}

// --- vocab.json and merges.txt
// ---------------------------------------------------------------------

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

bool is_opt(const ModelFiles& files) {
  const auto text = files.read("config.json");
  if (!text) return false;
  const nlohmann::json json =
      parse_json(quote_non_finite(*text), files.path("config.json"), DuplicateKeys::last_wins);
  return JsonField(json, files.path("config.json")).text_or("model_type", "") == "opt";
}

TokenizerConfig gpt2_config(const ModelFiles& files) {
  TokenizerConfig config = read_tokenizer_config(files);
  const std::string& name = config.tokenizer_class;
  if (!name.empty() && name != "GPT2Tokenizer" && name != "GPT2TokenizerFast") {
    throw Error(
        "{}: tokenizer_class {} without tokenizer.json is not supported (GPT2Tokenizer is); save "
        "it with "
        "transformers' save_pretrained() to get a tokenizer.json",
        files.path("tokenizer_config.json"), quote(name));
  }
  const bool opt = is_opt(files);
  if (!config.add_bos_token) config.add_bos_token = opt;
  if (!config.bos_token) config.bos_token = opt ? "</s>" : "<|endoftext|>";
  if (config.special_tokens.empty()) {
    for (const char* content : opt ? std::vector{"</s>", "<pad>"} : std::vector{"<|endoftext|>"}) {
      AddedToken token;
      token.content = content;
      token.special = true;
      config.special_tokens.push_back(token);
    }
  }
  return config;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view json, const std::string& path,
                                                    const TokenizerConfig& config) {
  const nlohmann::json document = parse_json(json, path, DuplicateKeys::last_wins);
  const JsonField root(document, path);
  const auto decoder = root.find("decoder");
  if (!decoder) throw Error("{}: a tokenizer without a decoder is not supported", path);
  Parts parts{make_normalizer(root.find("normalizer")),
              make_pre_tokenizer(root.find("pre_tokenizer")),
              make_bpe(root.at("model")),
              Decoder(*decoder),
              {},
              {}};
  AddedTokens tokens(parts.model);
  if (const auto added = root.find("added_tokens")) {
    for (std::size_t i = 0; i < added->size(); ++i) {
      tokens.add(make_added_token(added->item(i)));
    }
  }
  tokens.add_from(config);
  if (const auto processor = root.find("post_processor"))
    add_post_processor(*processor, 0, parts.around);
  apply_config(config, parts.model, tokens, parts.around);
  parts.added_tokens = tokens.take();
  return std::make_unique<BpeTokenizer>(std::move(parts), path);
}

std::unique_ptr<Tokenizer> make_tokenizer_from_vocab_and_merges(const ModelFiles& files) {
  const std::string path = files.path("vocab.json");
  const TokenizerConfig config = gpt2_config(files);
  const nlohmann::json vocab =
      parse_json(read_file(files, "vocab.json"), path, DuplicateKeys::last_wins);
  const auto merges = parse_merges(read_file(files, "merges.txt"), files.path("merges.txt"));
  Parts parts{
      nullptr,
      make_byte_level(config.add_prefix_space.value_or(false)),
      Bpe(make_vocab(JsonField(vocab, path)), merges, BpeOptions{}, files.path("merges.txt")),
      Decoder::byte_level(),
      {},
      {}};
  AddedTokens tokens(parts.model);
  tokens.add_from(config);
  apply_config(config, parts.model, tokens, parts.around);
  parts.added_tokens = tokens.take();
  return std::make_unique<BpeTokenizer>(std::move(parts), path);
}

}  // namespace sluice::tokenizers
