#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenizers/json_field.h"

namespace sluice::tokenizers {

/// Turns one token of the vocabulary into the bytes it stands for: tokenizer.json's "decoder", as
/// far as it can be done token by token. Immutable; thread-safe.
class Decoder {
 public:
  /// Throws Error that names what is not supported.
  explicit Decoder(const JsonField& field);
  /// GPT-2's.
  static Decoder byte_level();
  /// SentencePiece's: U+2581 is a space, <0x41> a byte, and the first space is not the user's.
  static Decoder sentencepiece();

  std::string token_bytes(std::string_view token) const;
  /// One space at the very start of a decoded text is not the user's.
  bool strips_leading_space() const { return strips_leading_space_; }

 private:
  enum class StepKind : std::uint8_t { byte_level, byte_fallback, replace };
  struct Step {
    StepKind kind;
    std::string from;  ///< replace
    std::string to;
  };

  Decoder() = default;
  void add(const JsonField& field, int nesting);
  void add_strip(const JsonField& field);

  std::vector<Step> steps_;
  bool is_fused_ = false;
  bool strips_leading_space_ = false;
};

}  // namespace sluice::tokenizers
