#include "models/tokenizer.h"

#include "base/error.h"
#include "models/tokenizers/bpe_tokenizer.h"
#include "models/tokenizers/sentencepiece.h"

namespace sluice {

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) text += token_bytes(id);
  if (strips_leading_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

bool has_tokenizer(const ModelFiles& files) {
  return files.contains("tokenizer.json") || files.contains("tokenizer.model") ||
         files.contains("vocab.json");
}

std::unique_ptr<Tokenizer> open_tokenizer(const ModelFiles& files) {
  if (const auto json = files.read("tokenizer.json")) {
    return tokenizers::make_tokenizer_from_json(*json, files.path("tokenizer.json"),
                                                tokenizers::read_tokenizer_config(files),
                                                tokenizers::read_model_hint(files));
  }
  if (files.contains("vocab.json") && files.contains("merges.txt")) {
    return tokenizers::make_tokenizer_from_vocab_and_merges(files);
  }
  if (files.contains("tokenizer.model"))
    return tokenizers::make_tokenizer_from_sentencepiece(files);
  throw Error(
      "{}: no tokenizer, expected tokenizer.json, vocab.json with merges.txt, or tokenizer.model",
      files.root());
}

}  // namespace sluice
