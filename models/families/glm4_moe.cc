#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/mixture_config.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultKvHeads = 8;
constexpr std::int64_t kDefaultExpertSize = 1408;
constexpr double kDefaultRotaryPart = 0.5;
constexpr double kDefaultEps = 1e-5;
constexpr std::string_view kExperts = "n_routed_experts";
constexpr std::string_view kShared = "n_shared_experts";

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads, 0, kDefaultRotaryPart);
  config.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 1e-30, 1.0, kDefaultEps));
  config.qkv_bias = fields.flag("attention_bias", false);
  config.qk_norm = fields.flag("use_qk_norm", false);
  read_experts(fields, {.num_experts = 128, .experts_per_token = 8, .key = kExperts}, config);
  read_sigmoid_router(fields, kExperts, config);
  config.ffn_size = fields.count("moe_intermediate_size", kDefaultExpertSize);
  config.shared_ffn_size = fields.count(kShared, 1, 0) * config.ffn_size;
  read_first_dense_layers(fields, 1, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["moe_intermediate_size"] = config.ffn_size;
  fields["intermediate_size"] = config.dense_ffn_size > 0 ? config.dense_ffn_size : config.ffn_size;
  fields["attention_bias"] = config.qkv_bias;
  fields["use_qk_norm"] = config.qk_norm;
  fields[std::string(kExperts)] = config.num_experts;
  fields[std::string(kShared)] = config.shared_ffn_size / config.ffn_size;
  fields["num_experts_per_tok"] = config.experts_per_token;
  fields["first_k_dense_replace"] =
      std::count(config.dense_layers.begin(), config.dense_layers.end(), true);
  write_sigmoid_router(config, fields);
}

constexpr std::array<std::string_view, 1> own_fields = {"use_qk_norm"};

}  // namespace

/// GLM-4.5 and its like: the first layers have one FFN; the others experts behind a sigmoid router,
/// and one FFN more, that all tokens go through. What predicts further tokens
/// (num_nextn_predict_layers) is a layer behind them that nothing here reads.
extern const Family glm4_moe_family = {.name = "glm4_moe",
                                       .architecture = "Glm4MoeForCausalLM",
                                       .default_max_positions = 131072,
                                       .ffn_field = "intermediate_size",
                                       .embed_field = "hidden_size",
                                       .expert_ffn_field = "moe_intermediate_size",
                                       .experts_field = kExperts,
                                       .own_fields = own_fields,
                                       .has_experts = true,
                                       .read = read,
                                       .write = write,
                                       .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
