#include "models/tokenizers/decoder.h"

#include "base/error.h"
#include "base/json.h"
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

}  // namespace

Decoder::Decoder(const JsonField& field) { add(field, 0); }

Decoder Decoder::byte_level() {
  Decoder decoder;
  decoder.steps_.push_back({StepKind::byte_level, "", ""});
  return decoder;
}

Decoder Decoder::sentencepiece() {
  Decoder decoder;
  decoder.steps_.push_back({StepKind::replace, "\xE2\x96\x81", " "});
  decoder.steps_.push_back({StepKind::byte_fallback, "", ""});
  decoder.strips_leading_space_ = true;
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
    steps_.push_back({StepKind::byte_level, "", ""});
    is_fused_ = true;
  } else if (type == "ByteFallback") {
    steps_.push_back({StepKind::byte_fallback, "", ""});
  } else if (type == "Replace") {
    const std::string& from = field.at("pattern").at("String").text();
    if (from.empty()) throw Error("{}.pattern: empty, expected some text", field.where());
    steps_.push_back({StepKind::replace, from, field.at("content").text()});
  } else if (type == "Metaspace") {
    steps_.push_back({StepKind::replace, field.at("replacement").text(), " "});
    if (steps_.back().from.empty())
      throw Error("{}.replacement: empty, expected one character", field.where());
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
  const auto number = [&](const char* key) { return field.at(key).token_id(); };
  const bool one_space =
      field.at("content").text() == " " && number("start") == 1 && number("stop") == 0;
  if (!is_fused_ || !one_space) {
    throw Error("{}: only Strip of one space at the start, after Fuse, is supported",
                field.where());
  }
  strips_leading_space_ = true;
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string out(token);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case StepKind::byte_level:
        out = from_byte_level(std::move(out));
        break;
      case StepKind::byte_fallback:
        out = from_byte_fallback(std::move(out));
        break;
      case StepKind::replace:
        out = replace_all(Pattern::literal(step.from), step.to, out, max_token_bytes);
        break;
    }
  }
  return out;
}

}  // namespace sluice::tokenizers
