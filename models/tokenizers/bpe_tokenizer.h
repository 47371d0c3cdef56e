#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/files.h"
#include "models/tokenizer.h"
#include "models/tokenizers/tokenizer_class.h"
#include "models/tokenizers/tokenizer_config.h"

namespace sluice::tokenizers {

/// From the text of a tokenizer.json; `path` begins every error message. Equal to what Transformers
/// 5's AutoTokenizer makes of the folder: `config` (tokenizer_config.json and the like) may change
/// the flags of added tokens and declare more of them, and a class that brings its own normalizer,
/// pre-tokenizer and decoder (see TokenizerClass) does so here. BOS and EOS are the file's
/// post_processor's; a warning says when tokenizer_config.json's flags want another thing. Throws
/// Error that names the file, the field and what is not supported.
std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view json, const std::string& path,
                                                    const TokenizerConfig& config = {},
                                                    const ModelHint& hint = {});

/// From vocab.json and merges.txt, as GPT-2, OPT and Qwen2 are published. BOS and EOS are added
/// where tokenizer_config.json's flags say so. Throws Error for any other tokenizer class.
std::unique_ptr<Tokenizer> make_tokenizer_from_vocab_and_merges(const ModelFiles& files);

}  // namespace sluice::tokenizers
