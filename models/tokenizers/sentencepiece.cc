#include "models/tokenizers/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/tokenizer_config.h"

namespace sluice::tokenizers {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581

enum class DummyPrefix : std::uint8_t { every_text, first_text };

/// Special tokens of the model and of tokenizer_config.json.
std::vector<AddedToken> collect_tokens(const sentencepiece::SentencePieceProcessor& model,
                                       const TokenizerConfig& config) {
  std::vector<AddedToken> tokens = config.added_tokens;
  const auto known = [&](const std::string& content) {
    return std::any_of(tokens.begin(), tokens.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  for (std::int32_t id = 0; id < model.GetPieceSize(); ++id) {
    if (!model.IsControl(id) && !model.IsUnknown(id)) continue;
    AddedToken token;
    token.id = id;
    token.content = model.IdToPiece(id);
    token.special = true;
    if (!known(token.content)) tokens.push_back(token);
  }
  for (AddedToken token : config.special_tokens) {
    token.id = model.PieceToId(token.content);
    if (!model.IsUnknown(token.id) && !known(token.content)) tokens.push_back(token);
  }
  for (AddedToken& token : tokens)
    token.normalized = false;  // the model's normalization is not for them
  return tokens;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> model,
                         const TokenizerConfig& config, DummyPrefix prefix)
      : model_(std::move(model)),
        added_(collect_tokens(*model_, config), nullptr),
        prefix_(prefix) {
    vocab_size_ = model_->GetPieceSize();
    for (const AddedToken& token : added_.tokens())
      vocab_size_ = std::max(vocab_size_, token.id + 1);
    bytes_.resize(static_cast<std::size_t>(vocab_size_));
    is_special_.resize(static_cast<std::size_t>(vocab_size_), false);
    for (std::int32_t id = 0; id < model_->GetPieceSize(); ++id) bytes_[id] = piece_bytes(id);
    for (const AddedToken& token : added_.tokens()) {
      bytes_[token.id] = token.special ? "" : token.content;
      is_special_[token.id] = token.special;
    }
    if (config.add_bos_token.value_or(true)) before_ = id_of(config.bos_token, model_->bos_id());
    if (config.add_eos_token.value_or(false)) after_ = id_of(config.eos_token, model_->eos_id());
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
        const bool prefixed = prefix_ == DummyPrefix::every_text || part.span.begin == 0;
        append_pieces(
            (prefixed ? std::string(space_mark) : std::string()) + std::string(part.span.of(text)),
            ids);
      }
    }
    if (special == SpecialTokens::add) ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
  }

  std::string token_bytes(std::int32_t id) const override {
    return id < 0 || id >= vocab_size_ ? std::string() : bytes_[id];
  }
  bool strips_leading_space() const override { return true; }
  bool is_special(std::int32_t id) const override {
    return id >= 0 && id < vocab_size_ && is_special_[id];
  }
  std::string special_text(std::int32_t id) const override {
    return is_special(id) ? added_.content_of(id) : std::string();
  }
  std::int32_t vocab_size() const override { return vocab_size_; }

 private:
  std::string piece_bytes(std::int32_t id) const {
    const std::string& piece = model_->IdToPiece(id);
    return decoder_.token_bytes(piece);
  }

  std::vector<std::int32_t> id_of(const std::optional<std::string>& content,
                                  std::int32_t fallback) const {
    for (const AddedToken& token : added_.tokens()) {
      if (token.content == content) return {token.id};
    }
    return fallback < 0 ? std::vector<std::int32_t>() : std::vector{fallback};
  }

  void append_pieces(const std::string& text, std::vector<std::int32_t>& ids) const {
    std::vector<int> pieces;
    const auto status = model_->Encode(text, &pieces);
    if (!status.ok())
      throw Error("SentencePiece cannot encode a text of {} bytes: {}", text.size(),
                  status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
  AddedTokenSet added_;
  DummyPrefix prefix_;
  Decoder decoder_ = Decoder::sentencepiece();
  std::int32_t vocab_size_ = 0;
  std::vector<std::string> bytes_;
  std::vector<bool> is_special_;
  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> after_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(const ModelFiles& files) {
  const std::string path = files.path("tokenizer.model");
  auto proto = files.read("tokenizer.model");
  if (!proto) throw Error("{}: no such file", path);
  // We write the dummy prefix ourselves, because not every text gets one. In protobuf's wire format
  // a later message is merged into an earlier one: this is
  // ModelProto{normalizer_spec{add_dummy_prefix: false}}.
  *proto += std::string("\x1A\x02\x18\x00", 4);
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = model->LoadFromSerializedProto(*proto);
  if (!status.ok()) throw Error("{}: not a SentencePiece model: {}", path, status.ToString());
  const TokenizerConfig config = read_tokenizer_config(files);
  return std::make_unique<SentencePieceTokenizer>(
      std::move(model), config,
      config.legacy.value_or(true) ? DummyPrefix::every_text : DummyPrefix::first_text);
}

}  // namespace sluice::tokenizers
