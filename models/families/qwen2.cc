#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/family.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

constexpr std::int64_t kDefaultWindowTokens = 4096;  // as in Transformers, likewise the next
constexpr std::int64_t kDefaultMaxWindowLayers = 28;

/// Layers from max_window_layers on have the window, unless layer_types says it layer by layer.
std::int64_t count_windowed_layers(const ConfigReader& fields, const ModelConfig& config) {
  const std::vector<std::string> types = fields.texts("layer_types");
  if (!types.empty()) return std::count(types.begin(), types.end(), "sliding_attention");
  const std::int64_t first = fields.count("max_window_layers", kDefaultMaxWindowLayers, 0);
  return std::max<std::int64_t>(0, config.num_layers - first);
}

void read_sliding_window(const ConfigReader& fields, ModelConfig& config) {
  if (!fields.flag("use_sliding_window", false) || fields.is_null("sliding_window")) return;
  const std::int64_t windowed = count_windowed_layers(fields, config);
  if (windowed == 0) return;
  if (windowed < config.num_layers) {
    throw Error(
        "{}: use_sliding_window with {} of {} layers under the window is not supported; "
        "set it to false (exact up to sliding_window tokens)",
        fields.where(), windowed, config.num_layers);
  }
  config.sliding_window_tokens = fields.count("sliding_window", kDefaultWindowTokens);
}

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config);
  config.qkv_bias = true;
  read_sliding_window(fields, config);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  const bool windowed = config.sliding_window_tokens > 0;
  fields["use_sliding_window"] = windowed;
  fields["sliding_window"] = windowed ? config.sliding_window_tokens : config.max_positions;
  fields["max_window_layers"] = windowed ? 0 : config.num_layers;
}

}  // namespace

/// Qwen2 and Qwen2.5: Llama's layers with biases on Q, K and V.
extern const Family qwen2_family = {.name = "qwen2",
                                    .architecture = "Qwen2ForCausalLM",
                                    .ffn_field = "intermediate_size",
                                    .embed_field = "hidden_size",
                                    .read = read,
                                    .write = write,
                                    .tensor_name = rms_decoder_tensor_name};

}  // namespace sluice
