#include "models/tokenizers/tokenizer_class.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/json.h"
#include "models/tokenizers/json_field.h"

namespace sluice::tokenizers {
namespace {

struct ClassName {
  std::string_view name;
  TokenizerClass tokenizer_class;
};
constexpr std::array class_names = {
    ClassName{"LlamaTokenizer", TokenizerClass::llama},
    ClassName{"CodeLlamaTokenizer", TokenizerClass::code_llama},
    ClassName{"GPT2Tokenizer", TokenizerClass::gpt2},
    ClassName{"GPTNeoXTokenizer", TokenizerClass::gpt_neox},
    ClassName{"Qwen2Tokenizer", TokenizerClass::qwen2},
};

/// What a model type means to AutoTokenizer.
struct RegisteredClass {
  std::string_view model_type;
  std::string_view name;  ///< empty: tokenizer.json as it is, whatever class is declared
  bool overrides_declared = false;
};
constexpr std::array registered_classes = {
    RegisteredClass{"code_llama", "CodeLlamaTokenizer"},
    RegisteredClass{"gpt2", "GPT2Tokenizer"},
    RegisteredClass{"gpt_neo", "GPT2Tokenizer"},
    RegisteredClass{"gpt_neox", "GPTNeoXTokenizer"},
    RegisteredClass{"gptj", "GPT2Tokenizer"},
    RegisteredClass{"granite", ""},
    RegisteredClass{"ministral", ""},
    RegisteredClass{"ministral3", ""},
    RegisteredClass{"mistral", ""},
    RegisteredClass{"mixtral", ""},
    RegisteredClass{"olmo", "GPTNeoXTokenizer"},
    RegisteredClass{"olmo2", ""},
    RegisteredClass{"opt", "GPT2Tokenizer"},
    RegisteredClass{"phi", "GPT2Tokenizer"},
    RegisteredClass{"phi3", ""},
    RegisteredClass{"qwen2", "Qwen2Tokenizer", true},
    RegisteredClass{"qwen2_moe", "Qwen2Tokenizer"},
    RegisteredClass{"qwen3", "Qwen2Tokenizer"},
    RegisteredClass{"qwen3_moe", "Qwen2Tokenizer"},
    RegisteredClass{"stablelm", ""},
    RegisteredClass{"starcoder2", "GPT2Tokenizer"},
};

std::string_view without_fast(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  return name;
}

const RegisteredClass* registered(std::string_view model_type) {
  const auto* const found =
      std::find_if(registered_classes.begin(), registered_classes.end(),
                   [&](const RegisteredClass& known) { return known.model_type == model_type; });
  return found == registered_classes.end() ? nullptr : found;
}

}  // namespace

ModelHint read_model_hint(const ModelFiles& files) {
  const auto text = files.read("config.json");
  if (!text) return {};
  const std::string path = files.path("config.json");
  const nlohmann::json json = parse_json(quote_non_finite(*text), path, DuplicateKeys::last_wins);
  const JsonField root(json, path);
  return {root.text_or("model_type", ""), root.text_or("tokenizer_class", "")};
}

TokenizerClass class_named(const std::string& name) {
  for (const ClassName& known : class_names) {
    if (known.name == without_fast(name)) return known.tokenizer_class;
  }
  return TokenizerClass::as_file;
}

TokenizerClass choose_class(const std::string& declared, const ModelHint& hint,
                            bool is_byte_level) {
  const std::string& wanted = declared.empty() ? hint.tokenizer_class : declared;
  const RegisteredClass* model = registered(hint.model_type);
  if (model == nullptr) {
    const TokenizerClass chosen = class_named(wanted);
    // Llama 3 calls itself so, too.
    return chosen == TokenizerClass::llama && is_byte_level ? TokenizerClass::as_file : chosen;
  }
  if (model->name.empty()) return TokenizerClass::as_file;
  if (wanted.empty() || model->overrides_declared) return class_named(std::string(model->name));
  const TokenizerClass chosen = class_named(wanted);
  return chosen == TokenizerClass::llama && is_byte_level ? TokenizerClass::as_file : chosen;
}

}  // namespace sluice::tokenizers
