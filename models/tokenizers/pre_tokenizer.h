#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/json_field.h"
#include "models/tokenizers/pattern.h"

namespace sluice::tokenizers {

/// A text cut into pieces, in order. The pieces are not empty; between them text may have been
/// dropped.
struct Pieces {
  std::string text;
  std::vector<Span> spans;
  bool at_start = false;  ///< the first piece stands at the very start of what the user wrote
};

/// Cuts (and rewrites) text before the model sees it: tokenizer.json's "pre_tokenizer". Immutable;
/// thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

/// Null (one piece) for an absent or null field. Known: every type of Hugging Face's but
/// UnicodeScripts. Throws Error that names any other type.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const std::optional<JsonField>& field);

/// GPT-2's: cuts with its own expression, then writes every byte as one printable character.
std::unique_ptr<PreTokenizer> make_byte_level(bool add_prefix_space);

/// Qwen2's: the same, with its own expression.
std::unique_ptr<PreTokenizer> make_qwen2_pre_tokenizer(bool add_prefix_space);

/// Which pieces get the replacement of a space put in front.
enum class MetaspacePrefix : std::uint8_t { never, first, always };

/// SentencePiece's: writes every space as `replacement`, and cuts nothing.
std::unique_ptr<PreTokenizer> make_metaspace(const std::string& replacement,
                                             MetaspacePrefix prefix);

/// GPT-2's printable stand-in for a byte, and back (nothing for any other character).
std::string_view byte_level_character(std::uint8_t byte);
std::optional<std::uint8_t> byte_level_byte(char32_t character);

}  // namespace sluice::tokenizers
