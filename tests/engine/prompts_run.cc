#include "tests/engine/prompts_run.h"

#include <fstream>

namespace sluice::testing {

Prompts many_prompts(int max_tokens) {
  constexpr int count = 12;
  Prompts many{.texts = {}, .batch = count, .max_tokens = max_tokens};
  const std::string story = "The quick brown fox jumps over the lazy dog. ";
  for (int i = 0; i < count; ++i)
    many.texts.push_back(
        (story + story + story + story).substr(0, 40 + 11 * static_cast<std::size_t>(i)));
  return many;
}

PromptsRunTest::PromptsRunTest(const Prompts& prompts)
    : sizes_{"--batch", std::to_string(prompts.batch), "--max-tokens",
             std::to_string(prompts.max_tokens)} {
  std::ofstream file(prompts_path);
  for (const std::string& text : prompts.texts)
    file << nlohmann::json{{"prompt", text}}.dump() << '\n';
}

Arguments PromptsRunTest::generate(const Arguments& more, const std::string& dtype) const {
  return Arguments{"generate", "--prompts", prompts_path,    "--stats", stats_path,
                   "--dtype",  dtype,       "--temperature", "0",       "-q"} +
         sizes_ + more;
}

nlohmann::json PromptsRunTest::stats() const {
  return nlohmann::json::parse(content_of(stats_path));
}

}  // namespace sluice::testing
