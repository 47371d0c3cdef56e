// Any bytes as generation_config.json: refused with an Error of one line, or defaults within the
// ranges that sampling relies on.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "models/generation_config.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto defaults = sluice::parse_generation_config(text, "generation_config.json");
    if (defaults.top_k && *defaults.top_k < 0) std::abort();
    for (const auto id : defaults.eos_token_ids)
      if (id < 0) std::abort();
  } catch (const sluice::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
