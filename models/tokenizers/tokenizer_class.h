#pragma once

#include <cstdint>
#include <string>

#include "models/files.h"

namespace sluice::tokenizers {

/// Which of its tokenizer classes Transformers 5 takes for a folder. Most take tokenizer.json as it
/// is. The others take its vocabulary, merges and post-processor, and bring their own normalizer,
/// pre-tokenizer and decoder.
enum class TokenizerClass : std::uint8_t { as_file, llama, code_llama, gpt2, gpt_neox, qwen2 };

/// What config.json says about the tokenizer; empty where it says nothing.
struct ModelHint {
  std::string model_type;
  std::string tokenizer_class;
};

/// Reads config.json where it is there. Throws Error when it is malformed.
ModelHint read_model_hint(const ModelFiles& files);

/// AutoTokenizer's choice. `declared` is tokenizer_config.json's tokenizer_class (may be empty),
/// `is_byte_level` whether tokenizer.json has a ByteLevel pre-tokenizer or decoder.
TokenizerClass choose_class(const std::string& declared, const ModelHint& hint, bool is_byte_level);

/// The class of that name, with or without "Fast" at its end; `as_file` for any other name.
TokenizerClass class_named(const std::string& name);

}  // namespace sluice::tokenizers
