#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/layer_types.h"
#include "models/mixture_config.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultKvHeads = 4;
constexpr std::int64_t kDefaultWindowTokens = 4096;
constexpr std::int64_t kDefaultExpertSize = 768;

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads);
  config.qkv_bias = config.out_bias = fields.flag("attention_bias", false);
  config.qk_norm = true;
  if (fields.flag("use_sliding_window", false) && !fields.is_null("sliding_window"))
    set_windows(fields.count("sliding_window", kDefaultWindowTokens), {}, config);
  read_experts(fields, {.num_experts = 128, .experts_per_token = 8}, config);
  config.norm_chosen = fields.flag("norm_topk_prob", false);
  config.ffn_size = fields.count("moe_intermediate_size", kDefaultExpertSize);
  read_dense_layers(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["moe_intermediate_size"] = config.ffn_size;
  if (config.dense_ffn_size > 0) fields["intermediate_size"] = config.dense_ffn_size;
  fields["attention_bias"] = config.qkv_bias;
  const bool windowed = config.sliding_window_tokens > 0;
  fields["use_sliding_window"] = windowed;
  fields["sliding_window"] = nullptr;
  if (windowed) fields["sliding_window"] = config.sliding_window_tokens;
  fields["num_experts"] = config.num_experts;
  fields["num_experts_per_tok"] = config.experts_per_token;
  fields["norm_topk_prob"] = config.norm_chosen;
  write_dense_layers(config, fields);
}

}  // namespace

/// Qwen3's mixtures of experts, such as 30B-A3B and 235B-A22B: Qwen3's attention, and in all layers
/// or some experts in place of one FFN.
extern const Family qwen3_moe_family = {.name = "qwen3_moe",
                                        .architecture = "Qwen3MoeForCausalLM",
                                        .default_max_positions = 32768,
                                        .ffn_field = "intermediate_size",
                                        .embed_field = "hidden_size",
                                        .expert_ffn_field = "moe_intermediate_size",
                                        .has_experts = true,
                                        .read = read,
                                        .write = write,
                                        .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
