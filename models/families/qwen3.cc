#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/qwen_windows.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultKvHeads = 32;
constexpr std::int64_t kDefaultHeadDim = 128;

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads, kDefaultHeadDim);
  config.qkv_bias = config.out_bias = fields.flag("attention_bias", false);
  config.qk_norm = true;
  read_qwen_windows(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["attention_bias"] = config.qkv_bias;
  write_qwen_windows(config, fields);
}

}  // namespace

/// Qwen3, dense: Llama's layers with a norm of each head's query and key.
extern const Family qwen3_family = {.name = "qwen3",
                                    .architecture = "Qwen3ForCausalLM",
                                    .default_max_positions = 32768,
                                    .ffn_field = "intermediate_size",
                                    .embed_field = "hidden_size",
                                    .read = read,
                                    .write = write,
                                    .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
