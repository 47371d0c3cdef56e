#include "models/tokenizers/utf8.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "models/tokenizer.h"

namespace sluice {
namespace tokenizers {
namespace {

struct LeadByte {
  std::uint8_t length = 0;  ///< 0: cannot start a character
  std::uint8_t second_min = 0x80;
  std::uint8_t second_max = 0xBF;
};

// Table 3-7 of the Unicode standard.
LeadByte lead_byte(std::uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step step_utf8(std::string_view bytes) {
  const LeadByte lead = lead_byte(static_cast<std::uint8_t>(bytes[0]));
  if (lead.length == 0) return {Utf8Step::Kind::ill_formed, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::unfinished, i};
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    const std::uint8_t low = i == 1 ? lead.second_min : std::uint8_t{0x80};
    const std::uint8_t high = i == 1 ? lead.second_max : std::uint8_t{0xBF};
    if (byte < low || byte > high) return {Utf8Step::Kind::ill_formed, i};
  }
  return {Utf8Step::Kind::character, lead.length};
}

std::size_t utf8_length(char first_byte) {
  const auto byte = static_cast<std::uint8_t>(first_byte);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

char32_t decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<std::uint8_t>(text[i]));
  };
  switch (utf8_length(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) {
    out.push_back(static_cast<char>(static_cast<std::uint8_t>(byte)));
  };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

std::size_t white_space_at_end(std::string_view text, std::size_t limit) {
  while (text.size() > limit) {
    const std::string_view last = last_character(text);
    if (!is_white_space(decode_utf8(last))) break;
    text.remove_suffix(last.size());
  }
  return std::max(text.size(), limit);
}

std::size_t white_space_at_start(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() && is_white_space(decode_utf8(text.substr(size))))
    size += utf8_length(text[size]);
  return size;
}

}  // namespace tokenizers

namespace {

constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// Length of the ASCII start of `text`.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, sizeof word);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<std::uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (true) {
    i += ascii_prefix(text.substr(i));
    if (i == text.size()) return std::nullopt;
    const tokenizers::Utf8Step step = tokenizers::step_utf8(text.substr(i));
    if (step.kind != tokenizers::Utf8Step::Kind::character) return i;
    i += step.num_bytes;
  }
}

std::string Utf8Stream::feed(std::string_view bytes) {
  using Kind = tokenizers::Utf8Step::Kind;
  pending_ += bytes;
  const std::string_view all = pending_;
  std::string out;
  std::size_t i = 0;
  while (i < all.size()) {
    const tokenizers::Utf8Step step = tokenizers::step_utf8(all.substr(i));
    if (step.kind == Kind::unfinished) break;
    out += step.kind == Kind::character ? all.substr(i, step.num_bytes) : replacement_character;
    i += step.num_bytes;
  }
  pending_.erase(0, i);
  return out;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return std::string(unfinished ? replacement_character : "");
}

}  // namespace sluice
