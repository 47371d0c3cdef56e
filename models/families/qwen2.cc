#include <nlohmann/json.hpp>
#include <vector>

#include "models/family.h"
#include "models/layer_types.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultWindowTokens = 4096;
constexpr std::int64_t kDefaultMaxWindowLayers = 28;
constexpr std::int64_t kDefaultKvHeads = 32;

/// Layers from max_window_layers on have the window, unless layer_types says it layer by layer.
std::vector<bool> find_windowed_layers(const ConfigReader& fields, const ModelConfig& config) {
  std::vector<bool> windowed = read_layer_types(fields, config);
  if (!windowed.empty()) return windowed;
  const std::int64_t first = fields.count("max_window_layers", kDefaultMaxWindowLayers, 0);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    windowed.push_back(layer >= first);
  return windowed;
}

void read_sliding_window(const ConfigReader& fields, ModelConfig& config) {
  if (!fields.flag("use_sliding_window", false) || fields.is_null("sliding_window")) {
    refuse_windows_without_size(fields, config, "use_sliding_window and sliding_window");
    return;
  }
  set_windows(fields.count("sliding_window", kDefaultWindowTokens),
              find_windowed_layers(fields, config), config);
}

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads);
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
  write_layer_types(config, fields);
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
