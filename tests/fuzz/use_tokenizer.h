#pragma once

#include <cstdint>
#include <string_view>

#include "models/tokenizer.h"

namespace sluice::fuzz {

/// Encodes and decodes it: whatever tokenizer was accepted must do that.
inline void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, Tokenizer::SpecialTokens::add);
  Utf8Stream stream;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
    stream.feed(tokenizer.token_bytes(id));
    tokenizer.is_special(id);
  }
  stream.finish();
  tokenizer.decode(ids);
}

/// The same with some texts.
inline void use_tokenizer(const Tokenizer& tokenizer) {
  for (const std::string_view text : {
           "",
           "Hello  world's 1234 <s>x</s>\r\n\t",
           "  a\u0301\u0323 \u212B \uD55C\uAE00 \u4EBA\u4EBA \U0001F469\u200D\U0001F4BB \uFB01 ",
           "\x01\x7F \u2581\u2581a<|endoftext|> <0x41> the old mill"
           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
       })
    use_tokenizer(tokenizer, text);
}

}  // namespace sluice::fuzz
