#include "models/tokenizers/decoder.h"

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizer.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pattern.h"
#include "models/tokenizers/pre_tokenizer.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

constexpr int max_nesting = 16;
constexpr std::size_t max_token_bytes = 1 << 16;

/// A token with a character outside of the alphabet (an added one) stands for its own bytes.
std::string from_byte_level(std::string token) {
  std::string bytes;
  std::string_view rest = token;
  while (!rest.empty()) {
    const Utf8Step step = step_utf8(rest);
    if (step.kind != Utf8Step::Kind::character) return token;
    const auto byte = byte_level_byte(decode_utf8(rest));
    if (!byte) return token;
    bytes += static_cast<char>(*byte);
    rest.remove_prefix(step.num_bytes);
  }
  return bytes;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// "<0x41>" is "A".
std::string from_byte_fallback(std::string token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return token;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) return token;
  return std::string(1, static_cast<char>(static_cast<std::uint8_t>(high * 16 + low)));
}

/// Takes one character, at most so many times, off both ends.
std::string strip(std::string token, std::string_view character, std::size_t at_most_at_start,
                  std::size_t at_most_at_end) {
  std::string_view rest = token;
  for (; at_most_at_start > 0 && rest.starts_with(character); --at_most_at_start)
    rest.remove_prefix(character.size());
  for (; at_most_at_end > 0 && rest.ends_with(character); --at_most_at_end)
    rest.remove_suffix(character.size());
  return std::string(rest);
}

}  // namespace

Decoder::Decoder(const std::optional<JsonField>& field) {
  if (field) {
    add(*field, 0);
    return;
  }
  steps_.emplace_back(PrependSpace());
  strips_leading_space_ = true;
}

Decoder Decoder::byte_level() {
  Decoder decoder;
  decoder.steps_.emplace_back(FromByteLevel());
  return decoder;
}

Decoder Decoder::sentencepiece() {
  Decoder decoder = sentencepiece_without_prefix();
  decoder.strips_leading_space_ = true;
  return decoder;
}

Decoder Decoder::sentencepiece_without_prefix() {
  Decoder decoder;
  decoder.steps_.emplace_back(Replace{Pattern::literal("\xE2\x96\x81"), " "});
  decoder.steps_.emplace_back(FromByteFallback());
  return decoder;
}

void Decoder::add(const JsonField& field, int nesting) {
  const std::string& type = field.type();
  if (type == "Sequence") {
    if (nesting == max_nesting)
      throw Error("{}: Sequence nested more than {} deep", field.where(), max_nesting);
    const JsonField items = field.at("decoders");
    for (std::size_t i = 0; i < items.size(); ++i) add(items.item(i), nesting + 1);
  } else if (type == "Strip") {
    add_strip(field);
  } else if (type == "Fuse") {
    is_fused_ = true;
  } else if (is_fused_) {
    throw Error("{}: {} after Fuse is not supported (Strip is)", field.where(), quote(type));
  } else if (type == "ByteLevel") {
    steps_.emplace_back(FromByteLevel());
    is_fused_ = true;
  } else if (type == "ByteFallback") {
    steps_.emplace_back(FromByteFallback());
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{make_pattern(field.at("pattern")), field.at("content").text()});
  } else if (type == "Metaspace") {
    const JsonField replacement = field.at("replacement");
    if (replacement.text().empty())
      throw Error("{}: empty, expected one character", replacement.where());
    steps_.emplace_back(Replace{Pattern::literal(replacement.text()), " "});
    strips_leading_space_ = field.text_or("prepend_scheme", "always") != "never" &&
                            field.boolean_or("add_prefix_space", true);
  } else {
    throw Error(
        "{}: type {} is not supported (ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, "
        "Sequence are)",
        field.where(), quote(type));
  }
}

void Decoder::add_strip(const JsonField& field) {
  const std::string& character = field.at("content").text();
  if (character.empty() || utf8_length(character[0]) != character.size())
    throw Error("{}.content: {}, expected one character", field.where(), quote(character));
  const auto at_start = static_cast<std::size_t>(field.at("start").token_id());
  const auto at_end = static_cast<std::size_t>(field.at("stop").token_id());
  if (!is_fused_) {
    steps_.emplace_back(Strip{character, at_start, at_end});
    return;
  }
  if (at_start == 0 && at_end == 0) return;
  if (character != " " || at_start != 1 || at_end != 0) {
    throw Error("{}: after Fuse, only Strip of one space at the start is supported", field.where());
  }
  strips_leading_space_ = true;
}

std::string Decoder::apply(const Step& step, std::string token) {
  if (std::holds_alternative<FromByteLevel>(step)) return from_byte_level(std::move(token));
  if (std::holds_alternative<FromByteFallback>(step)) return from_byte_fallback(std::move(token));
  if (std::holds_alternative<PrependSpace>(step)) return " " + token;
  if (const auto* ends = std::get_if<Strip>(&step)) {
    return strip(std::move(token), ends->character, ends->at_most_at_start, ends->at_most_at_end);
  }
  const auto& replace = std::get<Replace>(step);
  // After ByteFallback a token may be a lone byte, where no character can be looked for.
  if (find_invalid_utf8(token)) return token;
  return replace_all(replace.pattern, replace.content, token, max_token_bytes);
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string out(token);
  for (const Step& step : steps_) out = apply(step, std::move(out));
  return out;
}

}  // namespace sluice::tokenizers
