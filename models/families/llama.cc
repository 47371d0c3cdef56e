#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, config.num_heads);
  config.qkv_bias = config.out_bias = fields.flag("attention_bias", false);
  config.ffn_bias = fields.flag("mlp_bias", false);
  config.bos_token_id = fields.token_id("bos_token_id", 1);
  config.eos_token_ids = fields.token_ids("eos_token_id", {2});
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["attention_bias"] = config.qkv_bias;
  fields["mlp_bias"] = config.ffn_bias;
}

}  // namespace

/// Llama 2, 3, 3.1, 3.2, and what others publish in their shape.
extern const Family llama_family = {.name = "llama",
                                    .architecture = "LlamaForCausalLM",
                                    .default_max_positions = 2048,
                                    .ffn_field = "intermediate_size",
                                    .embed_field = "hidden_size",
                                    .read = read,
                                    .write = write,
                                    .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
