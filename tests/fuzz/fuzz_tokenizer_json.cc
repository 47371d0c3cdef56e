// Any bytes as tokenizer.json: accepted or refused with sluice::Error, never anything else. What is
// accepted must encode and decode text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "models/tokenizer.h"
#include "models/tokenizers/bpe_tokenizer.h"

namespace {

constexpr std::string_view texts[] = {
    "",
    "Hello  world's 1234 <s>x</s>\r\n\t",
    "  a\u0301\u0323 \u212B \uD55C\uAE00 \u4EBA\u4EBA \U0001F469\u200D\U0001F4BB ",
    "\x01\x7F \u2581\u2581a<|endoftext|> <0x41> "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
};

void use(const sluice::Tokenizer& tokenizer) {
  for (const std::string_view text : texts) {
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
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    use(*sluice::tokenizers::make_tokenizer_from_json(json, "fuzz/tokenizer.json"));
  } catch (const sluice::Error&) {
    return 0;
  }
  return 0;
}
