#include "models/family.h"
#include "models/qwen_windows.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

constexpr std::int64_t kDefaultKvHeads = 32;  // as in Transformers

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads);
  config.qkv_bias = true;
  read_qwen_windows(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  write_qwen_windows(config, fields);
}

}  // namespace

/// Qwen2 and Qwen2.5: Llama's layers with biases on Q, K and V.
extern const Family qwen2_family = {.name = "qwen2",
                                    .architecture = "Qwen2ForCausalLM",
                                    .default_max_positions = 32768,
                                    .ffn_field = "intermediate_size",
                                    .embed_field = "hidden_size",
                                    .read = read,
                                    .write = write,
                                    .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
