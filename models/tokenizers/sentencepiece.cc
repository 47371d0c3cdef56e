#include "models/tokenizers/sentencepiece.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pattern.h"
#include "models/tokenizers/sentencepiece_model.h"
#include "models/tokenizers/sentencepiece_normalizer.h"
#include "models/tokenizers/sentencepiece_segmenter.h"
#include "models/tokenizers/tokenizer_config.h"

namespace sluice::tokenizers {
namespace {

using PieceType = SentencePieceModel::PieceType;

/// How a text between special tokens begins: transformers' "legacy".
enum class PartRule : std::uint8_t {
  each_alone,  ///< like a text of its own
  continued    ///< after a token, it continues what was there
};

/// Special tokens of the model and of tokenizer_config.json.
std::vector<AddedToken> collect_tokens(const SentencePieceModel& model,
                                       const TokenizerConfig& config) {
  std::vector<AddedToken> tokens = config.added_tokens;
  std::unordered_set<std::string> known;
  for (const AddedToken& token : tokens) known.insert(token.content);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    if (piece.type != PieceType::control && piece.type != PieceType::unknown) continue;
    if (!known.insert(piece.text).second) continue;
    AddedToken token;
    token.id = static_cast<std::int32_t>(id);
    token.content = piece.text;
    token.special = true;
    tokens.push_back(token);
  }
  for (AddedToken token : config.special_tokens) {
    token.id = model.id_of(token.content);
    if (token.id != model.unknown_id && known.insert(token.content).second) tokens.push_back(token);
  }
  for (AddedToken& token : tokens)
    token.normalized = false;  // the model's normalization is not for them
  return tokens;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const TokenizerConfig& config, PartRule rule)
      : model_(std::move(model)),
        normalizer_(model_),
        segmenter_(make_segmenter(model_, normalizer_)),
        added_(collect_tokens(model_, config), nullptr),
        rule_(rule) {
    fill_entries();
    before_ = around(config.add_bos_token, true, config.bos_token, model_.bos_piece, "bos");
    after_ = around(config.add_eos_token, false, config.eos_token, model_.eos_piece, "eos");
  }

  std::vector<std::int32_t> encode(std::string_view text, SpecialTokens special) const override {
    if (const auto at = find_invalid_utf8(text))
      throw Error("the text is not UTF-8 at byte {}", *at);
    std::vector<std::int32_t> ids;
    if (special == SpecialTokens::add) ids = before_;
    for (const auto& part : added_.split_raw(text)) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        append_ids(normalizer_.normalize(part.span.of(text), place_of(part.span, text)), ids);
      }
    }
    if (special == SpecialTokens::add) ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
  }

  std::string token_bytes(std::int32_t id) const override {
    return is_token(id) ? entries_[static_cast<std::size_t>(id)].bytes : std::string();
  }
  std::string piece(std::int32_t id) const override {
    return is_token(id) ? entries_[static_cast<std::size_t>(id)].piece : std::string();
  }
  bool strips_leading_space() const override {
    return model_.normalization.add_dummy_prefix || model_.normalization.remove_extra_whitespaces;
  }
  bool is_special(std::int32_t id) const override {
    return is_token(id) && entries_[static_cast<std::size_t>(id)].is_special;
  }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(entries_.size()); }

  /// As the library's: where extra white space is removed, every piece loses a space in front until
  /// there is text.
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    bool expects_space = strips_leading_space();
    for (const std::int32_t id : ids) {
      if (is_special(id) || !is_token(id)) continue;
      const Entry& entry = entries_[static_cast<std::size_t>(id)];
      const bool drops_space = expects_space && entry.piece.starts_with(space_mark);
      text += std::string_view(entry.bytes).substr(drops_space ? 1 : 0);
      if (drops_space && !model_.normalization.remove_extra_whitespaces) expects_space = false;
      if (!text.empty()) expects_space = false;
    }
    return text;
  }
  std::string special_text(std::int32_t id) const override {
    return is_special(id) ? added_.content_of(id) : std::string();
  }

 private:
  struct Entry {
    std::string piece;
    std::string bytes;
    bool is_special = false;
  };

  bool is_token(std::int32_t id) const { return id >= 0 && id < vocab_size(); }

  void fill_entries() {
    std::size_t size = model_.pieces.size();
    for (const AddedToken& token : added_.tokens())
      size = std::max(size, static_cast<std::size_t>(token.id) + 1);
    entries_.resize(size);
    const Pattern space = Pattern::literal(std::string(space_mark));
    for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
      const std::string& piece = model_.pieces[id].text;
      entries_[id] = {piece, replace_all(space, " ", piece), false};
    }
    for (std::size_t byte = 0; model_.byte_fallback && byte < model_.byte_ids.size(); ++byte) {
      entries_[static_cast<std::size_t>(model_.byte_ids[byte])].bytes =
          std::string(1, static_cast<char>(byte));
    }
    for (const AddedToken& token : added_.tokens()) {
      entries_[static_cast<std::size_t>(token.id)] = {
          token.content, token.special ? "" : token.content, token.special};
    }
  }

  /// The token that goes before or after every text; none where it is not wanted. Throws Error
  /// where it is asked for by name and does not exist.
  std::vector<std::int32_t> around(std::optional<bool> wanted, bool by_default,
                                   const std::optional<std::string>& content,
                                   const std::string& piece, std::string_view name) const {
    if (!wanted.value_or(by_default)) return {};
    for (const AddedToken& token : added_.tokens()) {
      if (token.content == content) return {token.id};
    }
    const auto found = model_.reserved.find(piece);
    if (found != model_.reserved.end() && found->second != model_.unknown_id)
      return {found->second};
    if (!wanted) return {};
    throw Error(
        "{}: tokenizer_config.json says add_{}_token: true, but {}_token is not there and {} is no "
        "control piece",
        model_.path, name, name, quote(piece));
  }

  TextPlace place_of(const Span& span, std::string_view text) const {
    if (span.begin == 0 || rule_ == PartRule::each_alone) return TextPlace::start;
    const std::string_view part = span.of(text);
    return part.starts_with(' ') || part.starts_with(space_mark) ? TextPlace::continued
                                                                 : TextPlace::unprefixed;
  }

  /// A run of unknown characters is one unknown token, or all of its bytes.
  void append_ids(std::string_view text, std::vector<std::int32_t>& ids) const {
    bool after_unknown = false;
    for (const SentencePieceSegmenter::Segment& segment : segmenter_->segment(text)) {
      const bool is_unknown = segment.id == model_.unknown_id;
      if (is_unknown && model_.byte_fallback) {
        for (const char byte : segment.text)
          ids.push_back(model_.byte_ids[static_cast<std::uint8_t>(byte)]);
      } else if (!is_unknown || !after_unknown) {
        ids.push_back(segment.id);
      }
      after_unknown = is_unknown;
    }
  }

  SentencePieceModel model_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<SentencePieceSegmenter> segmenter_;
  AddedTokenSet added_;
  PartRule rule_;
  std::vector<Entry> entries_;  ///< by id
  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> after_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(std::string_view bytes,
                                                             const std::string& path,
                                                             const TokenizerConfig& config) {
  SentencePieceModel model = parse_sentencepiece_model(bytes, path);
  if (config.add_prefix_space) model.normalization.add_dummy_prefix = *config.add_prefix_space;
  return std::make_unique<SentencePieceTokenizer>(
      std::move(model), config,
      config.legacy.value_or(true) ? PartRule::each_alone : PartRule::continued);
}

std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(const ModelFiles& files) {
  const std::string path = files.path("tokenizer.model");
  const auto bytes = files.read("tokenizer.model");
  if (!bytes) throw Error("{}: no such file", path);
  return make_tokenizer_from_sentencepiece(*bytes, path, read_tokenizer_config(files));
}

}  // namespace sluice::tokenizers
