#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/tokenizers/json_field.h"
#include "models/tokenizers/pattern.h"

namespace sluice::tokenizers {

/// Turns one token of the vocabulary into the bytes it stands for: tokenizer.json's "decoder", as
/// far as it can be done token by token. Immutable; thread-safe.
class Decoder {
 public:
  /// A null or absent field joins tokens with spaces, as Hugging Face's does. Throws Error that
  /// names what is not supported.
  explicit Decoder(const std::optional<JsonField>& field);
  /// GPT-2's.
  static Decoder byte_level();
  /// SentencePiece's: U+2581 is a space, <0x41> a byte, and the first space is not the user's.
  static Decoder sentencepiece();
  /// The same, every space is the user's.
  static Decoder sentencepiece_without_prefix();

  std::string token_bytes(std::string_view token) const;
  /// One space at the very start of a decoded text is not the user's.
  bool strips_leading_space() const { return strips_leading_space_; }

 private:
  struct FromByteLevel {};
  struct FromByteFallback {};
  struct PrependSpace {};
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    std::string character;
    std::size_t at_most_at_start;
    std::size_t at_most_at_end;
  };
  using Step = std::variant<FromByteLevel, FromByteFallback, PrependSpace, Replace, Strip>;

  Decoder() = default;
  void add(const JsonField& field, int nesting);
  void add_strip(const JsonField& field);
  static std::string apply(const Step& step, std::string token);

  std::vector<Step> steps_;
  bool is_fused_ = false;
  bool strips_leading_space_ = false;
};

}  // namespace sluice::tokenizers
