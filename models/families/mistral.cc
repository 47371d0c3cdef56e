#include <array>
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/layer_types.h"
#include "models/rms_decoder.h"
#include "models/unsupported_fields.h"

namespace sluice {
namespace {

/// As in Transformers: null is "no window", but a missing field is the 4096 tokens of the first
/// Mistral.
constexpr std::int64_t kDefaultWindowTokens = 4096;
constexpr std::int64_t kDefaultKvHeads = 8;

// Transformers ignores these here, others do not.
constexpr std::array other_fields = {UnsupportedField{"attention_bias", "false"},
                                     UnsupportedField{"mlp_bias", "false"}};

/// All layers, or, in Ministral, those that layer_types names.
void read_sliding_window(const ConfigReader& fields, ModelConfig& config) {
  if (fields.is_null("sliding_window"))
    return refuse_windows_without_size(fields, config, "sliding_window");
  set_windows(fields.count("sliding_window", kDefaultWindowTokens),
              read_layer_types(fields, config), config);
}

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads);
  refuse_fields(fields, other_fields);
  read_sliding_window(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id", 1);
  config.eos_token_ids = fields.token_ids("eos_token_id", {2});
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["sliding_window"] = nullptr;
  if (config.sliding_window_tokens > 0) fields["sliding_window"] = config.sliding_window_tokens;
  write_layer_types(config, fields);
}

}  // namespace

/// Mistral 7B: Llama's layers with a sliding window over the context (v0.1) or without (v0.2 and
/// on). Ministral 8B: a window in some layers.
extern const Family mistral_family = {.name = "mistral",
                                      .architecture = "MistralForCausalLM",
                                      .other_name = "ministral",
                                      .default_max_positions = 131072,
                                      .ffn_field = "intermediate_size",
                                      .embed_field = "hidden_size",
                                      .read = read,
                                      .write = write,
                                      .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
