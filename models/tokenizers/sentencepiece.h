#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/files.h"
#include "models/tokenizer.h"
#include "models/tokenizers/tokenizer_config.h"

namespace sluice::tokenizers {

/// From the bytes of a tokenizer.model. A text without special tokens gets the ids of the
/// SentencePiece library: its normalization, its dummy prefix and its four kinds of model are done
/// here. `path` names the file in messages; throws Error when it is damaged.
///
/// Special tokens, BOS and EOS are transformers' LlamaTokenizer's: BOS unless add_bos_token says
/// no, EOS only if add_eos_token says so. "legacy": true (also when absent) treats every text
/// between special tokens like a text of its own. False: what follows a token gets no dummy prefix,
/// and a space in front of it stays. "add_prefix_space" overrides the model's add_dummy_prefix.
std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(std::string_view bytes,
                                                             const std::string& path,
                                                             const TokenizerConfig& config = {});

/// From the folder's tokenizer.model and tokenizer_config.json.
std::unique_ptr<Tokenizer> make_tokenizer_from_sentencepiece(const ModelFiles& files);

}  // namespace sluice::tokenizers
