// Any text as a chat template: refused with Error when parsed or rendered, or rendered to
// well-formed UTF-8, the same twice.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/chat_template/chat_template.h"
#include "models/tokenizer.h"

namespace {

using nlohmann::ordered_json;

void require(bool condition) {
  if (!condition) std::abort();
}

const ordered_json& messages() {
  static const ordered_json list = ordered_json::parse(
      R"([{"role": "system", "content": " Be terse.\n"},
          {"role": "user", "content": [{"type": "text", "text": "2 < 3? \u00e9"}, {"type": "image"}]},
          {"role": "assistant", "content": "Yes.", "reasoning_content": "so",
           "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": [1, 2.5, null]}}}]}])");
  return list;
}

sluice::ChatOptions options() {
  constexpr std::int64_t few_steps = 100'000;
  constexpr std::int64_t little_memory = 16 << 20;
  sluice::ChatOptions options;
  options.add_generation_prompt = true;
  options.tools = ordered_json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  options.variables =
      ordered_json::parse(R"({"n": 3, "t": "some text", "l": [3, 1, 2], "r": 0.5})");
  options.now = std::tm{};
  options.limits.steps = few_steps;
  options.limits.memory_bytes = little_memory;
  options.limits.output_bytes = little_memory;
  return options;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto chat_template = sluice::ChatTemplate::parse(text, "fuzz");
    const std::string rendered = chat_template.render(messages(), options());
    require(!sluice::find_invalid_utf8(rendered));
    require(chat_template.render(messages(), options()) == rendered);
  } catch (const sluice::Error&) {
  }
  return 0;
}
