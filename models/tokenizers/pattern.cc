#include "models/tokenizers/pattern.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "models/tokenizers/regex.h"
#include "models/tokenizers/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice::tokenizers {
namespace {

// Enough for any pattern in use, whose work grows with the text at most; an expression that needs
// more is refused instead of running for minutes.
std::uint32_t match_limit(std::size_t num_characters) {
  constexpr std::size_t at_least = 4'000'000;
  constexpr std::size_t at_most = 4'000'000'000;
  return static_cast<std::uint32_t>(std::min(at_least + 16 * num_characters, at_most));
}

pcre2_code* compile(std::string_view expression, int& error, std::size_t& offset) {
  return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                       PCRE2_NEVER_UTF | PCRE2_NEVER_UCP, &error, &offset, nullptr);
}

/// Where the matches of labels lie in the text: bytes for characters, asked for from left to right.
class ByteOffsets {
 public:
  ByteOffsets(std::string_view text, std::size_t num_characters)
      : text_(text), is_ascii_(text.size() == num_characters) {}

  std::size_t of(std::size_t character) {
    if (is_ascii_) return character;
    for (; character_ < character; ++character_) byte_ += utf8_length(text_[byte_]);
    return byte_;
  }

 private:
  std::string_view text_;
  bool is_ascii_;
  std::size_t character_ = 0;
  std::size_t byte_ = 0;
};

}  // namespace

struct Pattern::Compiled {
  explicit Compiled(CharacterLabels character_labels) : labels(std::move(character_labels)) {}
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }

  /// False when nothing more matches from `from` on.
  bool match(std::string_view labelled, std::size_t from, pcre2_match_data* data,
             pcre2_match_context* context) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(labelled.data());
    int rc = pcre2_match(code, subject, labelled.size(), from, 0, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      // The interpreter keeps its state on the heap.
      rc = pcre2_match(code, subject, labelled.size(), from, PCRE2_NO_JIT, data, context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      throw Error(
          "{}: the regular expression gave up on a text of {} characters at character {} (PCRE2 "
          "error {})",
          where, labelled.size(), from, rc);
    }
    return true;
  }

  CharacterLabels labels;
  pcre2_code* code = nullptr;
  std::string where;
};

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Pattern Pattern::regex(const std::string& expression, const std::string& where) {
  LabelExpression translated = translate_regex(expression, where);
  auto compiled = std::make_shared<Compiled>(std::move(translated.labels));
  compiled->where = where;
  int error = 0;
  std::size_t offset = 0;
  compiled->code = compile(translated.expression, error, offset);
  if (compiled->code == nullptr) {
    char message[128] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw Error("{}: the regular expression {} does not compile: {}", where, quote(expression),
                message);
  }
  // Where JIT code may not be made, the interpreter runs: slower, the same matches.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  Pattern pattern;
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

std::vector<Span> Pattern::find_all_literal(std::string_view text) const {
  std::vector<Span> spans;
  if (literal_.empty()) return spans;
  std::size_t at = text.find(literal_);
  while (at != std::string_view::npos) {
    spans.push_back({at, at + literal_.size()});
    at = text.find(literal_, at + literal_.size());
  }
  return spans;
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (!compiled_) return find_all_literal(text);
  const std::string labelled = compiled_->labels.label_text(text);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (!data || !context) throw Error("{}: out of memory", compiled_->where);
  pcre2_set_match_limit(context.get(), match_limit(labelled.size()));
  const std::size_t* range = pcre2_get_ovector_pointer(data.get());
  ByteOffsets bytes(text, labelled.size());
  std::vector<Span> spans;
  std::size_t from = 0;
  bool has_previous = false;
  std::size_t previous_end = 0;
  while (from <= labelled.size() && compiled_->match(labelled, from, data.get(), context.get())) {
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (begin == end && has_previous && previous_end == end) {
      ++from;
      continue;
    }
    const std::size_t first_byte = bytes.of(begin);
    spans.push_back({first_byte, bytes.of(end)});
    has_previous = true;
    previous_end = end;
    from = end;
  }
  return spans;
}

}  // namespace sluice::tokenizers
