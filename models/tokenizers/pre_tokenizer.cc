#include "models/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

constexpr int max_nesting = 16;
constexpr const char* gpt2_expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr const char* qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct ByteAlphabet {
  std::array<std::string, 256> character;
  std::array<std::int16_t, 512> byte;  // -1: not in the alphabet

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next_stand_in = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(b) : next_stand_in++;
      append_utf8(c, character[b]);
      byte[c] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

/// A piece of the text and whether the pattern matched it.
struct Part {
  Span span;
  bool is_match;
};

/// Matches and what lies between them, over all of the text.
std::vector<Part> cover(const std::vector<Span>& matches, std::size_t size) {
  std::vector<Part> parts;
  std::size_t done = 0;
  for (const Span& match : matches) {
    if (done != match.begin) parts.push_back({{done, match.begin}, false});
    parts.push_back({match, true});
    done = match.end;
  }
  if (done != size) parts.push_back({{done, size}, false});
  return parts;
}

enum class Behavior : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};

std::vector<Span> merge_contiguous(const std::vector<Part>& parts) {
  std::vector<Span> out;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.is_match == previous && !out.empty()) {
      out.back().end = part.span.end;
    } else {
      out.push_back(part.span);
    }
    previous = part.is_match;
  }
  return out;
}

std::vector<Span> merge_with_previous(const std::vector<Part>& parts) {
  std::vector<Span> out;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.is_match && !previous && !out.empty()) {
      out.back().end = part.span.end;
    } else {
      out.push_back(part.span);
    }
    previous = part.is_match;
  }
  return out;
}

std::vector<Span> merge_with_next(const std::vector<Part>& parts) {
  std::vector<Span> out;  // from the right
  bool previous = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part& part = parts[i];
    if (part.is_match && !previous && !out.empty()) {
      out.back().begin = part.span.begin;
    } else {
      out.push_back(part.span);
    }
    previous = part.is_match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Span> split(const std::vector<Part>& parts, Behavior behavior) {
  switch (behavior) {
    case Behavior::contiguous:
      return merge_contiguous(parts);
    case Behavior::merged_with_previous:
      return merge_with_previous(parts);
    case Behavior::merged_with_next:
      return merge_with_next(parts);
    default:
      break;
  }
  std::vector<Span> out;
  for (const Part& part : parts) {
    if (behavior == Behavior::isolated || !part.is_match) out.push_back(part.span);
  }
  return out;
}

/// Cuts every piece on its own; `cut` gives spans within the piece's text.
template <typename Cut>
void cut_pieces(Pieces& pieces, Cut cut) {
  std::vector<Span> out;
  bool at_start = false;
  for (std::size_t i = 0; i < pieces.spans.size(); ++i) {
    const Span outer = pieces.spans[i];
    for (const Span& inner : cut(outer.of(pieces.text))) {
      if (inner.empty()) continue;
      if (out.empty()) at_start = pieces.at_start && i == 0 && inner.begin == 0;
      out.push_back({outer.begin + inner.begin, outer.begin + inner.end});
    }
  }
  pieces.spans = std::move(out);
  pieces.at_start = at_start;
}

/// Rewrites every piece on its own; `rewrite(piece, is_at_start, out)` appends to `out`.
template <typename Rewrite>
void rewrite_pieces(Pieces& pieces, Rewrite rewrite) {
  std::string text;
  text.reserve(pieces.text.size() * 2);
  std::vector<Span> out;
  out.reserve(pieces.spans.size());
  for (std::size_t i = 0; i < pieces.spans.size(); ++i) {
    const std::size_t begin = text.size();
    rewrite(pieces.spans[i].of(pieces.text), pieces.at_start && i == 0, text);
    if (text.size() != begin) out.push_back({begin, text.size()});
    if (text.size() > max_text_bytes) {
      throw Error("the pre_tokenizer makes a text longer than {} bytes", max_text_bytes);
    }
  }
  pieces.text = std::move(text);
  pieces.spans = std::move(out);
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(Pieces& pieces) const override {
    cut_pieces(pieces, [this](std::string_view text) {
      auto parts = cover(pattern_.find_all(text), text.size());
      for (Part& part : parts) part.is_match = part.is_match != invert_;
      return split(parts, behavior_);
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

enum class ByteLevelCut : std::uint8_t { none, gpt2 };

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, ByteLevelCut cut)
      : add_prefix_space_(add_prefix_space),
        cut_(cut),
        pattern_(Pattern::regex(gpt2_expression, "ByteLevel")) {}

  void apply(Pieces& pieces) const override {
    if (add_prefix_space_) {
      rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& out) {
        if (!piece.starts_with(' ')) out += ' ';
        out += piece;
      });
    }
    if (cut_ == ByteLevelCut::gpt2) {
      cut_pieces(pieces, [this](std::string_view text) {
        return split(cover(pattern_.find_all(text), text.size()), Behavior::isolated);
      });
    }
    rewrite_pieces(pieces, [](std::string_view piece, bool, std::string& out) {
      for (const char c : piece) out += byte_level_character(static_cast<std::uint8_t>(c));
    });
  }

 private:
  bool add_prefix_space_;
  ByteLevelCut cut_;
  Pattern pattern_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, MetaspacePrefix prefix, bool cut)
      : replacement_(std::move(replacement)), prefix_(prefix), cut_(cut) {}

  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [this](std::string_view piece, bool at_start, std::string& out) {
      const bool wanted =
          prefix_ == MetaspacePrefix::always || (prefix_ == MetaspacePrefix::first && at_start);
      if (wanted && !piece.starts_with(' ') && !piece.starts_with(replacement_))
        out += replacement_;
      for (const char c : piece) {
        if (c == ' ') {
          out += replacement_;
        } else {
          out += c;
        }
      }
    });
    if (!cut_) return;
    cut_pieces(pieces, [this](std::string_view text) {
      return split(cover(Pattern::literal(replacement_).find_all(text), text.size()),
                   Behavior::merged_with_next);
    });
  }

 private:
  std::string replacement_;
  MetaspacePrefix prefix_;
  bool cut_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual)
      : individual_(individual), pattern_(Pattern::regex(R"(\p{N})", "Digits")) {}

  void apply(Pieces& pieces) const override {
    cut_pieces(pieces, [this](std::string_view text) {
      return split(cover(pattern_.find_all(text), text.size()),
                   individual_ ? Behavior::isolated : Behavior::contiguous);
    });
  }

 private:
  bool individual_;
  Pattern pattern_;
};

enum class Kind : std::uint8_t { text, word, space, punctuation };

/// Runs of one kind; punctuation is cut off character by character, white space is dropped.
template <typename KindOf>
std::vector<Span> cut_by_kind(std::string_view text, KindOf kind_of) {
  std::vector<Span> out;
  Kind previous = Kind::space;
  for (std::size_t at = 0; at < text.size();) {
    const Kind kind = kind_of(decode_utf8(text.substr(at)));
    const std::size_t end = at + utf8_length(text[at]);
    if (kind == previous && kind != Kind::space && kind != Kind::punctuation) {
      out.back().end = end;
    } else if (kind != Kind::space) {
      out.push_back({at, end});
    }
    previous = kind;
    at = end;
  }
  return out;
}

template <typename KindOf>
class CutByKind final : public PreTokenizer {
 public:
  explicit CutByKind(KindOf kind_of) : kind_of_(kind_of) {}
  void apply(Pieces& pieces) const override {
    cut_pieces(pieces, [this](std::string_view text) { return cut_by_kind(text, kind_of_); });
  }

 private:
  KindOf kind_of_;
};

template <typename KindOf>
std::unique_ptr<PreTokenizer> by_kind(KindOf kind_of) {
  return std::make_unique<CutByKind<KindOf>>(kind_of);
}

/// Null when the type is none of these.
std::unique_ptr<PreTokenizer> make_by_kind(const std::string& type) {
  if (type == "WhitespaceSplit") {
    return by_kind([](char32_t c) { return is_white_space(c) ? Kind::space : Kind::text; });
  }
  if (type == "Whitespace") {
    return by_kind([](char32_t c) {
      if (is_word_character(c)) return Kind::word;
      return is_white_space(c) ? Kind::space : Kind::text;
    });
  }
  if (type == "BertPreTokenizer") {
    return by_kind([](char32_t c) {
      if (is_white_space(c)) return Kind::space;
      return is_punctuation(c) ? Kind::punctuation : Kind::text;
    });
  }
  return nullptr;
}

/// Matches are single characters: punctuation, or one character that the file names.
template <typename IsMatch>
class SplitAtCharacters final : public PreTokenizer {
 public:
  SplitAtCharacters(IsMatch is_match, Behavior behavior)
      : is_match_(is_match), behavior_(behavior) {}

  void apply(Pieces& pieces) const override {
    cut_pieces(pieces, [this](std::string_view text) {
      std::vector<Span> matches;
      for (std::size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
        if (is_match_(decode_utf8(text.substr(at))))
          matches.push_back({at, at + utf8_length(text[at])});
      }
      return split(cover(matches, text.size()), behavior_);
    });
  }

 private:
  IsMatch is_match_;
  Behavior behavior_;
};

template <typename IsMatch>
std::unique_ptr<PreTokenizer> split_at(IsMatch is_match, Behavior behavior) {
  return std::make_unique<SplitAtCharacters<IsMatch>>(is_match, behavior);
}

/// Pieces of so many characters; the last one may be shorter.
class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::size_t num_characters) : num_characters_(num_characters) {}

  void apply(Pieces& pieces) const override {
    cut_pieces(pieces, [this](std::string_view text) {
      std::vector<Span> out;
      std::size_t num_left = 0;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = at + utf8_length(text[at]);
        if (num_left == 0) {
          out.push_back({at, end});
          num_left = num_characters_;
        }
        out.back().end = end;
        --num_left;
        at = end;
      }
      return out;
    });
  }

 private:
  std::size_t num_characters_;
};

class Sequence final : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& part : parts_) part->apply(pieces);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

Behavior behavior_named(const JsonField& field) {
  const std::string& name = field.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  throw Error(
      "{}: {} is not a behavior (Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous "
      "are)",
      field.where(), quote(name));
}

MetaspacePrefix prefix_named(const std::string& name, const std::string& where) {
  if (name == "never") return MetaspacePrefix::never;
  if (name == "first") return MetaspacePrefix::first;
  if (name == "always") return MetaspacePrefix::always;
  throw Error("{}: prepend_scheme {} is not one of never, first, always", where, quote(name));
}

char32_t one_character(const JsonField& field) {
  const std::string& text = field.text();
  if (text.empty() || utf8_length(text[0]) != text.size())
    throw Error("{}: {}, expected one character", field.where(), quote(text));
  return decode_utf8(text);
}

std::unique_ptr<PreTokenizer> read_metaspace(const JsonField& field) {
  MetaspacePrefix prefix = prefix_named(field.text_or("prepend_scheme", "always"), field.where());
  if (!field.boolean_or("add_prefix_space", true)) prefix = MetaspacePrefix::never;  // older files
  const std::string& replacement = field.at("replacement").text();
  one_character(field.at("replacement"));
  return std::make_unique<Metaspace>(replacement, prefix, field.boolean_or("split", true));
}

std::unique_ptr<PreTokenizer> make_split(const JsonField& field) {
  return std::make_unique<Split>(make_pattern(field.at("pattern")),
                                 behavior_named(field.at("behavior")),
                                 field.boolean_or("invert", false));
}

std::unique_ptr<PreTokenizer> make_punctuation(const JsonField& field) {
  const auto behavior = field.find("behavior");
  return split_at(is_punctuation, behavior ? behavior_named(*behavior) : Behavior::isolated);
}

std::unique_ptr<PreTokenizer> make_fixed_length(const JsonField& field) {
  const auto length = field.find("length");
  const std::int32_t num_characters = length ? length->token_id() : 5;
  if (num_characters == 0) throw Error("{}: found 0, expected at least 1", length->where());
  return std::make_unique<FixedLength>(static_cast<std::size_t>(num_characters));
}

std::unique_ptr<PreTokenizer> make_sequence(const JsonField& field, int nesting);

std::unique_ptr<PreTokenizer> make(const JsonField& field, int nesting) {
  const std::string& type = field.type();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(
        field.boolean_or("add_prefix_space", true),
        field.boolean_or("use_regex", true) ? ByteLevelCut::gpt2 : ByteLevelCut::none);
  }
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = one_character(field.at("delimiter"));
    return split_at([delimiter](char32_t c) { return c == delimiter; }, Behavior::removed);
  }
  if (type == "Digits")
    return std::make_unique<Digits>(field.boolean_or("individual_digits", false));
  if (type == "FixedLength") return make_fixed_length(field);
  if (type == "Metaspace") return read_metaspace(field);
  if (type == "Punctuation") return make_punctuation(field);
  if (type == "Sequence") return make_sequence(field, nesting);
  if (type == "Split") return make_split(field);
  if (auto made = make_by_kind(type)) return made;
  throw Error(
      "{}: type {} is not supported (BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, "
      "FixedLength, Metaspace, Punctuation, Sequence, Split, Whitespace, WhitespaceSplit are)",
      field.where(), quote(type));
}

std::unique_ptr<PreTokenizer> make_sequence(const JsonField& field, int nesting) {
  if (nesting == max_nesting)
    throw Error("{}: Sequence nested more than {} deep", field.where(), max_nesting);
  const JsonField items = field.at("pretokenizers");
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (std::size_t i = 0; i < items.size(); ++i) parts.push_back(make(items.item(i), nesting + 1));
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace

std::string_view byte_level_character(std::uint8_t byte) { return byte_alphabet().character[byte]; }

std::optional<std::uint8_t> byte_level_byte(char32_t character) {
  const auto& bytes = byte_alphabet().byte;
  if (character >= bytes.size() || bytes[character] < 0) return std::nullopt;
  return static_cast<std::uint8_t>(bytes[character]);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const std::optional<JsonField>& field) {
  return field ? make(*field, 0) : nullptr;
}

std::unique_ptr<PreTokenizer> make_byte_level(bool add_prefix_space) {
  return std::make_unique<ByteLevel>(add_prefix_space, ByteLevelCut::gpt2);
}

std::unique_ptr<PreTokenizer> make_qwen2_pre_tokenizer(bool add_prefix_space) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  parts.push_back(std::make_unique<Split>(Pattern::regex(qwen2_expression, "Qwen2Tokenizer"),
                                          Behavior::isolated, false));
  parts.push_back(std::make_unique<ByteLevel>(add_prefix_space, ByteLevelCut::none));
  return std::make_unique<Sequence>(std::move(parts));
}

std::unique_ptr<PreTokenizer> make_metaspace(const std::string& replacement,
                                             MetaspacePrefix prefix) {
  return std::make_unique<Metaspace>(replacement, prefix, false);
}

}  // namespace sluice::tokenizers
