#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/files.h"
#include "models/tokenizer.h"
#include "models/tokenizers/tokenizer_config.h"

namespace sluice::tokenizers {

/// From the text of a tokenizer.json; `path` begins every error message. Equal to Hugging Face's
/// Tokenizer.from_str(), but that `config` (tokenizer_config.json) may change which of BOS and EOS
/// are added, and may declare more special tokens, as transformers does. Throws Error that names
/// the file, the field and what is not supported.
std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view json, const std::string& path,
                                                    const TokenizerConfig& config = {});

/// From vocab.json and merges.txt, as GPT-2 and OPT are published. An OPT model (config.json)
/// starts its texts with "</s>" unless tokenizer_config.json says otherwise.
std::unique_ptr<Tokenizer> make_tokenizer_from_vocab_and_merges(const ModelFiles& files);

}  // namespace sluice::tokenizers
