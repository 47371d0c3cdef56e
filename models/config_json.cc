#include "models/config_json.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "models/config_reader.h"
#include "models/family.h"
#include "models/layer_types.h"
#include "models/unsupported_fields.h"

namespace sluice {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string supported_architectures() {
  std::vector<std::string_view> names;
  for (const Family* family : families()) names.push_back(family->architecture);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// By model_type, as Transformers; architectures count where that says nothing known.
const Family& family_of(const ConfigReader& fields) {
  const std::string model_type = fields.text("model_type", "");
  const auto architectures = fields.texts("architectures");
  if (architectures.empty() && model_type.empty()) fields.missing("model_type");
  for (const Family* family : families()) {
    if (!model_type.empty() && (family->name == model_type || family->other_name == model_type))
      return *family;
  }
  for (const Family* family : families()) {
    if (!architectures.empty() && family->architecture == architectures.front()) return *family;
  }
  throw Error("{}: architecture {} is not supported; supported are {}", fields.where(),
              quote(architectures.empty() ? model_type : architectures.front()),
              supported_architectures());
}

DType read_stored_dtype(const ConfigReader& fields) {
  const std::string_view key = fields.has("dtype") ? "dtype" : "torch_dtype";
  std::string text = fields.text(key, "float32");
  if (text == "auto") text = "float32";  // whatever the checkpoint has
  if (constexpr std::string_view prefix = "torch."; text.starts_with(prefix))
    text.erase(0, prefix.size());
  if (text == "bfloat16") return DType::bf16;
  if (text == "float16") return DType::f16;
  if (text == "float32") return DType::f32;
  fields.refuse(key, "\"bfloat16\", \"float16\" or \"float32\"");
}

std::string_view hugging_face_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f32:
      break;
  }
  return "float32";
}

std::optional<QuantizationConfig> read_quantization(const ConfigReader& fields) {
  const auto quantization = fields.object("quantization_config");
  if (!quantization) return std::nullopt;
  return parse_quantization_config(*quantization);
}

void write_special_tokens(const ModelConfig& config, ordered_json& fields) {
  fields["bos_token_id"] =
      config.bos_token_id ? ordered_json(*config.bos_token_id) : ordered_json();
  const auto& eos = config.eos_token_ids;
  fields["eos_token_id"] = eos.empty()       ? ordered_json()
                           : eos.size() == 1 ? ordered_json(eos.front())
                                             : ordered_json(eos);
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& where) {
  const json parsed = parse_json(quote_non_finite(text), where, DuplicateKeys::last_wins);
  const ConfigReader fields(parsed, where);
  const Family& family = family_of(fields);
  refuse_fields(fields, unsupported_fields(), family.own_fields);
  if (!family.has_experts) refuse_fields(fields, fields_of_experts());

  ModelConfig config;
  config.family = family.name;
  config.hidden_size = fields.count("hidden_size");
  config.embed_size = config.hidden_size;
  config.num_layers = fields.count("num_hidden_layers");
  if (config.num_layers > most_layers)
    fields.refuse("num_hidden_layers", fmt::format("1 to {}", most_layers));
  config.num_heads = fields.count("num_attention_heads");
  config.num_kv_heads = config.num_heads;
  config.vocab_size = fields.count("vocab_size");
  config.max_positions = fields.count("max_position_embeddings", family.default_max_positions);
  config.stored_dtype = read_stored_dtype(fields);
  config.quantization = read_quantization(fields);
  family.read(fields, config);
  check_config(config, where);
  return config;
}

std::string config_json(const ModelConfig& config) {
  const Family* family = find_family(config.family);
  if (family == nullptr) {
    throw Error(
        "family {} has a shape only: no checkpoint format is known for it; families with one are "
        "{}",
        quote(config.family), supported_architectures());
  }
  ordered_json fields;
  fields["architectures"] = {family->architecture};
  fields["model_type"] = family->name;
  fields["torch_dtype"] = hugging_face_name(config.stored_dtype);
  fields["vocab_size"] = config.vocab_size;
  fields["hidden_size"] = config.hidden_size;
  fields["num_hidden_layers"] = config.num_layers;
  fields["num_attention_heads"] = config.num_heads;
  fields["max_position_embeddings"] = config.max_positions;
  fields["tie_word_embeddings"] = config.tied_embeddings;
  fields["use_cache"] = true;
  family->write(config, fields);
  write_special_tokens(config, fields);
  return json_text(fields, 2) + "\n";
}

std::string generation_config_json(const ModelConfig& config) {
  ordered_json fields;
  fields["_from_model_config"] = true;
  write_special_tokens(config, fields);
  return json_text(fields, 2) + "\n";
}

}  // namespace sluice
