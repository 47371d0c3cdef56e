// Any bytes as tokenizer.json: accepted or refused with sluice::Error, never anything else. What is
// accepted must encode and decode text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "models/tokenizers/bpe_tokenizer.h"
#include "tests/fuzz/use_tokenizer.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    sluice::fuzz::use_tokenizer(
        *sluice::tokenizers::make_tokenizer_from_json(json, "fuzz/tokenizer.json"));
  } catch (const sluice::Error&) {
    return 0;
  }
  return 0;
}
