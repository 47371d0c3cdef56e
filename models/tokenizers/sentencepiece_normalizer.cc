#include "models/tokenizers/sentencepiece_normalizer.h"

#include <algorithm>

#include "base/error.h"
#include "models/tokenizer.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

std::uint32_t read_u32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  return value;
}

// A unit of Darts-clone's double array. A node's children lie at its place XOR its offset XOR
// their byte; the unit there has that byte as label. A node that ends a key has its value at its
// place XOR its offset.
bool has_leaf(std::uint32_t unit) { return ((unit >> 8) & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit >> 6) & 8); }

}  // namespace

PrecompiledCharsmap::PrecompiledCharsmap(std::string_view blob, std::string where)
    : where_(std::move(where)) {
  if (blob.empty()) return;
  const std::uint32_t trie_bytes = blob.size() < 4 ? 0 : read_u32(blob);
  if (trie_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes >= blob.size() - 4) {
    throw Error("{}: damaged: {} bytes, of which the table takes {}", where_, blob.size(),
                trie_bytes);
  }
  for (std::size_t at = 4; at < trie_bytes + 4; at += 4)
    units_.push_back(read_u32(blob.substr(at, 4)));
  texts_ = blob.substr(trie_bytes + 4);
  if (texts_.back() != '\0') throw Error("{}: damaged: its last text has no end", where_);
}

PrecompiledCharsmap::Replacement PrecompiledCharsmap::longest(std::string_view text) const {
  if (units_.empty()) return {{}, 0};
  const auto unit = [&](std::uint32_t place) {
    if (place >= units_.size())
      throw Error("{}: damaged: it points to unit {} of {}", where_, place, units_.size());
    return units_[place];
  };
  Replacement best{{}, 0};
  std::uint32_t place = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    place ^= byte;
    const std::uint32_t node = unit(place);
    if (label_of(node) != byte) break;
    place ^= offset_of(node);
    if (!has_leaf(node)) continue;
    const std::uint32_t begin = value_of(unit(place));
    if (begin >= texts_.size())
      throw Error("{}: damaged: it points to byte {} of {}", where_, begin, texts_.size());
    best = {std::string_view(texts_.c_str() + begin), i + 1};
  }
  return best;
}

void PrecompiledCharsmap::check(std::string_view result) const {
  if (units_.empty()) return;
  if (find_invalid_utf8(result))
    throw Error("{}: damaged: it makes text that is not UTF-8", where_);
}

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceModel& model)
    : spec_(model.normalization),
      prefix_is_suffix_(model.treat_whitespace_as_suffix),
      space_(spec_.escape_whitespaces ? space_mark : " "),
      charsmap_(spec_.precompiled_charsmap, model.path + ": normalizer_spec.precompiled_charsmap") {
  spec_.precompiled_charsmap.clear();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == SentencePieceModel::PieceType::user_defined)
      user_defined_.insert(model.pieces[id].text, static_cast<std::int32_t>(id));
  }
}

std::string SentencePieceNormalizer::normalize(std::string_view text, TextPlace place) const {
  std::string out;
  const bool strips = spec_.remove_extra_whitespaces;
  if (strips && place != TextPlace::continued) text.remove_prefix(leading_spaces(text));
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 4 + space_.size());
  const bool prefixed = place == TextPlace::start && spec_.add_dummy_prefix;
  if (prefixed && !prefix_is_suffix_) out += space_;
  bool after_space = strips && place != TextPlace::continued;
  while (!text.empty()) {
    auto [part, num_bytes] = step(text);
    text.remove_prefix(num_bytes);
    if (after_space) part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    append(part, out);
    if (!part.empty()) after_space = strips && part.ends_with(' ');
  }
  charsmap_.check(out);
  while (strips && out.ends_with(space_)) out.resize(out.size() - space_.size());
  if (prefixed && prefix_is_suffix_) out += space_;
  return out;
}

PrecompiledCharsmap::Replacement SentencePieceNormalizer::step(std::string_view text) const {
  if (const std::size_t num_bytes = user_defined(text); num_bytes > 0)
    return {text.substr(0, num_bytes), num_bytes};
  if (const auto replacement = charsmap_.longest(text); replacement.num_bytes > 0)
    return replacement;
  const std::size_t num_bytes = utf8_length(text[0]);
  return {text.substr(0, num_bytes), num_bytes};
}

std::size_t SentencePieceNormalizer::leading_spaces(std::string_view text) const {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto [part, num_bytes] = step(text.substr(done));
    if (part != " ") break;
    done += num_bytes;
  }
  return done;
}

void SentencePieceNormalizer::append(std::string_view text, std::string& out) const {
  for (const char byte : text) {
    if (byte == ' ') {
      out += space_;
    } else {
      out += byte;
    }
  }
}

}  // namespace sluice::tokenizers
