#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "engine/requests/events.h"
#include "engine/requests/text_output.h"

namespace sluice {

/// Turns the engine's tokens into text: a consumer of its events that passes them on with text.
class Detokenizer {
 public:
  /// New text of an output, complete UTF-8 characters only. Text that may yet turn out to be a stop
  /// text is held back.
  using OnText = std::function<void(const Request&, std::int64_t output, const std::string& text)>;

  /// `tokenizer` outlives it; null: there is no text, and no stop text. `on_finished` gets
  /// completions with their text.
  Detokenizer(const Tokenizer* tokenizer, OnText on_text,
              std::function<void(Completion)> on_finished)
      : tokenizer_(tokenizer), on_text_(std::move(on_text)), on_finished_(std::move(on_finished)) {}

  /// For the engine; this outlives it.
  EngineEvents events();

 private:
  Verdict take(const Request& request, const DrawnToken& token);
  void finish(Completion completion);

  const Tokenizer* tokenizer_;
  OnText on_text_;
  std::function<void(Completion)> on_finished_;
  /// Of what runs: by request and output.
  std::map<std::pair<std::int64_t, std::int64_t>, TextOutput> texts_;
};

}  // namespace sluice
