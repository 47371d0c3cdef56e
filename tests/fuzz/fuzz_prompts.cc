// Any bytes as a prompts file: either it is refused with an Error of one line, or every prompt has
// an id of its own, and a text in UTF-8 or token ids.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/requests/prompts.h"
#include "models/tokenizer.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_prompt(const sluice::PromptLine& prompt, std::int64_t line_before) {
  require(prompt.line > line_before);
  require(prompt.prompt.empty() != prompt.prompt_token_ids.empty());
  require(!sluice::find_invalid_utf8(prompt.prompt) && !sluice::find_invalid_utf8(prompt.id));
  for (const std::int32_t id : prompt.prompt_token_ids) require(id >= 0);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    std::set<std::string> ids;
    std::int64_t line = 0;
    for (const sluice::PromptLine& prompt : sluice::parse_prompts(text, "prompts.jsonl")) {
      check_prompt(prompt, line);
      line = prompt.line;
      require(ids.insert(prompt.id).second);
    }
    require(line > 0);
  } catch (const sluice::Error& error) {
    const std::string_view message = error.what();
    require(message.starts_with("prompts.jsonl") && message.find('\n') == std::string_view::npos);
    require(message.size() < 1000);
  }
  return 0;
}
