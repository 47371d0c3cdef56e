// Any bytes as tokenizer.model: accepted or refused with sluice::Error, never anything else. What
// is accepted must encode and decode text, some of it made of its own pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/tokenizer.h"
#include "models/tokenizers/sentencepiece.h"

namespace {

constexpr std::int32_t max_own_pieces = 64;

constexpr std::string_view texts[] = {
    "",
    "Hello  world's 1234 <s>x</s>\r\n\t",
    "  a\u0301\u0323 \u212B \uD55C\uAE00 \u4EBA\u4EBA \U0001F469\u200D\U0001F4BB \uFB01 ",
    "\x01\x7F \u2581\u2581a<|endoftext|> <0x41> the old mill"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};

void use(const sluice::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, sluice::Tokenizer::SpecialTokens::add);
  sluice::Utf8Stream stream;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
    stream.feed(tokenizer.token_bytes(id));
    tokenizer.is_special(id);
  }
  stream.finish();
  tokenizer.decode(ids);
}

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
    for (const std::string_view text : texts) use(*tokenizer, text);
    use(*tokenizer, own_pieces(*tokenizer));
  } catch (const sluice::Error&) {
    return 0;
  }
  return 0;
}
