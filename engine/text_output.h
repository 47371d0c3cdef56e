#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer.h"

namespace sluice {

/// The text of one sequence as its tokens come: UTF-8 characters as soon as they are complete, stop
/// texts found even across tokens. It continues a prompt, so a leading space stays.
class TextOutput {
 public:
  TextOutput(const Tokenizer& tokenizer, std::vector<std::string> stop);

  /// Adds a token; returns the text that is now certain to be part of the output.
  std::string add(std::int32_t token);
  /// No more tokens: the rest.
  std::string finish();

  bool stopped() const { return stopped_; }
  /// Everything that add() and finish() returned.
  const std::string& text() const { return text_; }

 private:
  std::string release(std::size_t count);
  std::size_t held_back() const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_;
  Utf8Stream utf8_;
  std::string pending_;  ///< complete characters that may be the beginning of a stop text
  std::string text_;
  bool stopped_ = false;
};

}  // namespace sluice
