#pragma once

#include <memory>

#include "models/files.h"
#include "models/tokenizer.h"

namespace sluice::tokenizers {

/// From tokenizer.model through libsentencepiece, with the special tokens, BOS and EOS that
/// transformers' LlamaTokenizer adds: BOS unless tokenizer_config.json's add_bos_token says no, EOS
/// only if add_eos_token says so. "legacy": true (also when absent, as in the tokenizer.json that
/// Llama-2 is published with) puts SentencePiece's dummy prefix before every text between special
/// tokens, false before the first only. Throws Error when the file is not a SentencePiece model.
std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(const ModelFiles& files);

}  // namespace sluice::tokenizers
