#include "models/tokenizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/pattern.h"
#include "models/tokenizers/pre_tokenizer.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/utf8.h"

namespace sluice::tokenizers {
namespace {

constexpr int max_nesting = 16;

void check_text_size(std::size_t num_bytes, std::size_t num_bytes_before,
                     std::size_t max_bytes = max_text_bytes) {
  if (num_bytes > max_bytes) {
    throw Error("a normalizer makes a text of {} bytes longer than {}", num_bytes_before,
                max_bytes);
  }
}

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  std::string normalize(std::string text) const override {
    for (const auto& part : parts_) text = part->normalize(std::move(text));
    return text;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string normalize(std::string text) const override {
    return text.empty() ? text : prefix_ + text;
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string normalize(std::string text) const override {
    return replace_all(pattern_, content_, text);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class ToUnicodeForm final : public Normalizer {
 public:
  explicit ToUnicodeForm(UnicodeForm form) : form_(form) {}
  std::string normalize(std::string text) const override { return to_unicode_form(form_, text); }

 private:
  UnicodeForm form_;
};

/// Rewrites each character on its own: `rewrite(character, its UTF-8, out)` appends to `out`.
template <typename Rewrite>
class EachCharacter final : public Normalizer {
 public:
  explicit EachCharacter(Rewrite rewrite) : rewrite_(rewrite) {}
  std::string normalize(std::string text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view character = rest.substr(0, utf8_length(rest[0]));
      rewrite_(decode_utf8(character), character, out);
      rest.remove_prefix(character.size());
    }
    check_text_size(out.size(), text.size());
    return out;
  }

 private:
  Rewrite rewrite_;
};

template <typename Rewrite>
std::unique_ptr<Normalizer> each_character(Rewrite rewrite) {
  return std::make_unique<EachCharacter<Rewrite>>(rewrite);
}

/// A normalizer that leaves out the characters of one kind.
std::unique_ptr<Normalizer> remove_characters(bool (*is_removed)(char32_t)) {
  return each_character([is_removed](char32_t c, std::string_view utf8, std::string& out) {
    if (!is_removed(c)) out += utf8;
  });
}

std::unique_ptr<Normalizer> make_lower_case() {
  return each_character(
      [](char32_t c, std::string_view, std::string& out) { append_lower_case(c, out); });
}

std::unique_ptr<Normalizer> make_nmt() {
  return each_character([](char32_t c, std::string_view utf8, std::string& out) {
    if (is_space_to_nmt(c)) {
      out += ' ';
    } else if (!is_removed_by_nmt(c)) {
      out += utf8;
    }
  });
}

std::unique_ptr<Normalizer> make_byte_level_normalizer() {
  return each_character([](char32_t, std::string_view utf8, std::string& out) {
    for (const char byte : utf8) out += byte_level_character(static_cast<std::uint8_t>(byte));
  });
}

std::unique_ptr<Normalizer> make_bert(const JsonField& field) {
  std::vector<std::unique_ptr<Normalizer>> parts;
  if (field.boolean_or("clean_text", true)) {
    parts.push_back(each_character([](char32_t c, std::string_view utf8, std::string& out) {
      if (is_space_to_bert(c)) {
        out += ' ';
      } else if (!is_removed_by_bert(c)) {
        out += utf8;
      }
    }));
  }
  if (field.boolean_or("handle_chinese_chars", true)) {
    parts.push_back(each_character([](char32_t c, std::string_view utf8, std::string& out) {
      const std::string_view space = is_chinese_to_bert(c) ? " " : "";
      out.append(space).append(utf8).append(space);
    }));
  }
  const bool lower_case = field.boolean_or("lowercase", true);
  if (field.boolean_or("strip_accents", lower_case)) {
    parts.push_back(std::make_unique<ToUnicodeForm>(UnicodeForm::nfd));
    parts.push_back(remove_characters(is_accent_to_bert));
  }
  if (lower_case) parts.push_back(make_lower_case());
  return std::make_unique<Sequence>(std::move(parts));
}

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  std::string normalize(std::string text) const override {
    if (right_) text.resize(white_space_at_end(text, 0));
    if (left_) text.erase(0, white_space_at_start(text));
    return text;
  }

 private:
  bool left_;
  bool right_;
};

std::unique_ptr<Normalizer> make_sequence(const JsonField& field, int nesting);

std::unique_ptr<Normalizer> make(const JsonField& field, int nesting) {
  const std::string& type = field.type();
  if (type == "BertNormalizer") return make_bert(field);
  if (type == "ByteLevel") return make_byte_level_normalizer();
  if (type == "Lowercase") return make_lower_case();
  if (type == "Nmt") return make_nmt();
  if (type == "StripAccents") return remove_characters(is_accent);
  if (type == "Strip") {
    return std::make_unique<Strip>(field.boolean_or("strip_left", true),
                                   field.boolean_or("strip_right", true));
  }
  if (type == "NFC") return std::make_unique<ToUnicodeForm>(UnicodeForm::nfc);
  if (type == "NFD") return std::make_unique<ToUnicodeForm>(UnicodeForm::nfd);
  if (type == "NFKC") return std::make_unique<ToUnicodeForm>(UnicodeForm::nfkc);
  if (type == "NFKD") return std::make_unique<ToUnicodeForm>(UnicodeForm::nfkd);
  if (type == "Prepend") return std::make_unique<Prepend>(field.at("prepend").text());
  if (type == "Replace") {
    return std::make_unique<Replace>(make_pattern(field.at("pattern")), field.at("content").text());
  }
  if (type == "Sequence") return make_sequence(field, nesting);
  throw Error(
      "{}: type {} is not supported (BertNormalizer, ByteLevel, Lowercase, NFC, NFD, NFKC, NFKD, "
      "Nmt, Prepend, Replace, Sequence, Strip, StripAccents are)",
      field.where(), quote(type));
}

std::unique_ptr<Normalizer> make_sequence(const JsonField& field, int nesting) {
  if (nesting == max_nesting)
    throw Error("{}: Sequence nested more than {} deep", field.where(), max_nesting);
  const JsonField items = field.at("normalizers");
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (std::size_t i = 0; i < items.size(); ++i) parts.push_back(make(items.item(i), nesting + 1));
  return std::make_unique<Sequence>(std::move(parts));
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// utf8proc_decompose sorts marks by swapping neighbours, which is quadratic on a long run of them.
void sort_marks(std::vector<utf8proc_int32_t>& text) {
  auto run = text.begin();
  while (run != text.end()) {
    run = std::find_if(run, text.end(), [](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(run, text.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(run, end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

std::vector<utf8proc_int32_t> decompose(std::string_view text, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size() + 16);
  while (!text.empty()) {
    utf8proc_int32_t buffer[32];  // Unicode's longest decomposition has 18 characters
    int last_class = UTF8PROC_BOUNDCLASS_START;
    const auto count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(decode_utf8(text)), buffer,
        static_cast<utf8proc_ssize_t>(std::size(buffer)), options, &last_class);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(std::size(buffer))) {
      throw Error("Unicode normalization failed at U+{:04X}",
                  static_cast<std::uint32_t>(decode_utf8(text)));
    }
    out.insert(out.end(), buffer, buffer + count);
    text.remove_prefix(utf8_length(text[0]));
  }
  return out;
}

// Hugging Face's normalizer knows Unicode 9: to it these newer characters neither combine nor
// decompose.
struct CodePoints {
  char32_t first;
  char32_t last;
};
constexpr CodePoints newer_than_unicode_9[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
    {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

bool is_newer(char32_t c) {
  const auto* const found =
      std::lower_bound(std::begin(newer_than_unicode_9), std::end(newer_than_unicode_9), c,
                       [](const CodePoints& range, char32_t point) { return range.last < point; });
  return found != std::end(newer_than_unicode_9) && c >= found->first;
}

/// Bytes before the first character that is_newer().
std::size_t known_prefix(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() && !is_newer(decode_utf8(text.substr(size))))
    size += utf8_length(text[size]);
  return size;
}

// No character below U+0300 changes or combines under NFC.
bool is_surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

void append_form(UnicodeForm form, std::string_view text, std::string& out) {
  const bool compatibility = form == UnicodeForm::nfkc || form == UnicodeForm::nfkd;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
  auto points = decompose(text, static_cast<utf8proc_option_t>(options));
  sort_marks(points);
  if (form == UnicodeForm::nfc || form == UnicodeForm::nfkc) {
    const auto count = utf8proc_normalize_utf32(
        points.data(), static_cast<utf8proc_ssize_t>(points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (count < 0) throw Error("Unicode normalization failed: {}", utf8proc_errmsg(count));
    points.resize(static_cast<std::size_t>(count));
  }
  for (const auto point : points) append_utf8(static_cast<char32_t>(point), out);
}

}  // namespace

std::string to_unicode_form(UnicodeForm form, std::string_view text) {
  if (form == UnicodeForm::nfc && is_surely_nfc(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t known = known_prefix(text);
    append_form(form, text.substr(0, known), out);
    text.remove_prefix(known);
    if (text.empty()) break;
    const std::size_t newer = utf8_length(text[0]);
    out += text.substr(0, newer);
    text.remove_prefix(newer);
  }
  return out;
}

std::string replace_all(const Pattern& pattern, std::string_view content, std::string_view text,
                        std::size_t max_bytes) {
  std::string out;
  std::size_t done = 0;
  for (const Span& match : pattern.find_all(text)) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
    if (out.size() > max_bytes) break;
  }
  out += text.substr(done);
  check_text_size(out.size(), text.size(), max_bytes);
  return out;
}

Pattern make_pattern(const JsonField& field) {
  if (const auto text = field.find("String")) {
    if (text->text().empty()) throw Error("{}: empty, expected some text", text->where());
    return Pattern::literal(text->text());
  }
  const JsonField expression = field.at("Regex");
  return Pattern::regex(expression.text(), expression.where());
}

std::unique_ptr<Normalizer> make_nfc() { return std::make_unique<ToUnicodeForm>(UnicodeForm::nfc); }

std::unique_ptr<Normalizer> make_normalizer(const std::optional<JsonField>& field) {
  return field ? make(*field, 0) : nullptr;
}

}  // namespace sluice::tokenizers
