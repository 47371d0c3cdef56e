#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/files.h"

namespace sluice {

/// Text to token ids and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  enum class SpecialTokens : std::uint8_t { add, leave_out };
  /// Ids as Hugging Face's `encode(text, add_special_tokens=...)` gives them. Special tokens
  /// written in the text are recognised. Throws Error when `text` is not UTF-8 (see
  /// find_invalid_utf8), or when it has a character that the vocabulary cannot express (only
  /// without byte tokens and unknown token).
  virtual std::vector<std::int32_t> encode(std::string_view text, SpecialTokens special) const = 0;

  /// The bytes one token stands for when it continues a text (may be a part of a UTF-8 sequence;
  /// empty for special tokens and ids that are no token). Concatenated over ids this gives the text
  /// back, but for a leading space that SentencePiece adds at the start of a text (see
  /// strips_leading_space()).
  virtual std::string token_bytes(std::int32_t id) const = 0;
  virtual bool strips_leading_space() const = 0;

  /// The token as its vocabulary writes it: "Ġthe", "▁the", "<0x0A>", "<s>". Empty for ids that are
  /// no token.
  virtual std::string piece(std::int32_t id) const { return token_bytes(id); }

  virtual bool is_special(std::int32_t id) const = 0;
  /// What a special token is written as ("</s>"), which token_bytes() leaves out; else empty.
  virtual std::string special_text(std::int32_t /*id*/) const { return {}; }
  virtual std::int32_t vocab_size() const = 0;  ///< highest id + 1

  /// Concatenated token bytes, special tokens left out, a SentencePiece dummy prefix taken off.
  virtual std::string decode(std::span<const std::int32_t> ids) const;
};

/// Reads tokenizer.json from the folder, else vocab.json with merges.txt, else tokenizer.model; and
/// tokenizer_config.json, special_tokens_map.json and added_tokens.json where they matter. Throws
/// Error (file, field, and what is not supported).
std::unique_ptr<Tokenizer> open_tokenizer(const ModelFiles& files);
/// Whether there are files of a tokenizer.
bool has_tokenizer(const ModelFiles& files);

/// Gives the longest prefix of what was fed so far that ends at a UTF-8 character boundary, once.
class Utf8Stream {
 public:
  /// Adds bytes; returns what became printable. Bytes that can never become UTF-8 come out as
  /// U+FFFD.
  std::string feed(std::string_view bytes);
  /// The rest at the end: an unfinished sequence becomes one U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

/// Byte offset of the first ill-formed UTF-8 sequence, or nothing.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace sluice
