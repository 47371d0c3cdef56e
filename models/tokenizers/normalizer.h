#pragma once

#include <memory>
#include <string>

#include "models/tokenizers/json_field.h"

namespace sluice::tokenizers {

/// Changes the text before it is cut: tokenizer.json's "normalizer". Immutable; thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual std::string normalize(std::string text) const = 0;
};

/// Null (nothing to do) for an absent or null field. Known: every type of Hugging Face's but
/// Precompiled. Throws Error that names any other type.
std::unique_ptr<Normalizer> make_normalizer(const std::optional<JsonField>& field);

/// NFC, as Qwen2's.
std::unique_ptr<Normalizer> make_nfc();

/// The pattern of Replace and Split: {"String": ...} or {"Regex": ...}.
class Pattern;
Pattern make_pattern(const JsonField& field);

/// A few Replace steps in a row could double a text each: no step may make it longer than this.
constexpr std::size_t max_text_bytes = std::size_t{256} << 20;

/// `text` with every match replaced. Throws Error when the result is longer than `max_bytes`.
std::string replace_all(const Pattern& pattern, std::string_view content, std::string_view text,
                        std::size_t max_bytes = max_text_bytes);

enum class UnicodeForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
std::string to_unicode_form(UnicodeForm form, std::string_view text);

}  // namespace sluice::tokenizers
