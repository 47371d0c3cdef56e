#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"

namespace sluice {

/// The text of one sequence as its tokens come: UTF-8 characters as soon as they are complete, stop
/// texts found even across tokens. It continues a prompt, so a leading space stays. Special tokens
/// are no part of the text, but a stop text may be one, or have one in it.
class TextOutput {
 public:
  /// `stop` holds no empty text; it outlives this.
  TextOutput(const Tokenizer& tokenizer, std::span<const std::string> stop);

  /// Adds a token; returns the text that is now certain to be part of the output.
  std::string add(std::int32_t token);
  /// No more tokens: the rest.
  std::string finish();

  bool stopped() const { return stopped_; }
  /// Everything that add() and finish() returned.
  const std::string& text() const { return text_; }

 private:
  /// What may be the beginning of a stop text, complete characters only.
  struct Pending {
    std::string text;          ///< special tokens written out
    std::vector<bool> hidden;  ///< of each byte: it is a special token's

    void add(std::string_view more, bool is_hidden);
    std::string visible() const;
    /// Where the visible byte number `count` is, or the end.
    std::size_t place_of_visible(std::size_t count) const;
    /// Takes off what is before `end`; returns the visible part.
    std::string take(std::size_t end);
  };

  std::string release(std::size_t end);
  /// Where the first stop text begins, or npos.
  std::size_t find_stop() const;
  /// Where the longest end of the pending text with which some stop text begins starts.
  std::size_t begin_of_held_back() const;

  const Tokenizer& tokenizer_;
  std::span<const std::string> stop_;
  Utf8Stream utf8_;
  Pending pending_;
  std::string text_;
  bool stopped_ = false;
};

}  // namespace sluice
