// Any bytes as tokenizer.model: accepted or refused with sluice::Error, never anything else. What
// is accepted must encode and decode text, some of it made of its own pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/tokenizers/sentencepiece.h"
#include "tests/fuzz/use_tokenizer.h"

namespace {

constexpr std::int32_t max_own_pieces = 64;

std::string own_pieces(const sluice::Tokenizer& tokenizer) {
  std::string text;
  for (std::int32_t id = 0; id < std::min(tokenizer.vocab_size(), max_own_pieces); ++id)
    text += tokenizer.piece(id);
  return text;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view model(reinterpret_cast<const char*>(data), size);
  sluice::tokenizers::TokenizerConfig config;
  config.legacy = size % 2 == 0;
  try {
    const auto tokenizer = sluice::tokenizers::make_tokenizer_from_sentencepiece(
        model, "fuzz/tokenizer.model", config);
    sluice::fuzz::use_tokenizer(*tokenizer);
    sluice::fuzz::use_tokenizer(*tokenizer, own_pieces(*tokenizer));
  } catch (const sluice::Error&) {
    return 0;
  }
  return 0;
}
