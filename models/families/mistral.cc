#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

/// As in Transformers: null is "no window", but a missing field is the 4096 tokens of the first
/// Mistral.
constexpr std::int64_t kDefaultWindowTokens = 4096;

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config);
  config.sliding_window_tokens =
      fields.is_null("sliding_window") ? 0 : fields.count("sliding_window", kDefaultWindowTokens);
  config.bos_token_id = fields.token_id("bos_token_id", 1);
  config.eos_token_ids = fields.token_ids("eos_token_id", {2});
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["sliding_window"] = nullptr;
  if (config.sliding_window_tokens > 0) fields["sliding_window"] = config.sliding_window_tokens;
}

}  // namespace

/// Mistral 7B: Llama's layers with a sliding window over the context (v0.1) or without (v0.2 and
/// on).
extern const Family mistral_family = {.name = "mistral",
                                      .architecture = "MistralForCausalLM",
                                      .ffn_field = "intermediate_size",
                                      .embed_field = "hidden_size",
                                      .read = read,
                                      .write = write,
                                      .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
