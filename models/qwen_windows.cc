#include "models/qwen_windows.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "models/layer_types.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultWindowTokens = 4096;
constexpr std::int64_t kDefaultMaxWindowLayers = 28;

/// Layers from max_window_layers on have the window, unless layer_types says it layer by layer.
std::vector<bool> find_windowed_layers(const ConfigReader& fields, const ModelConfig& config) {
  std::vector<bool> windowed = read_layer_types(fields, config);
  if (!windowed.empty()) return windowed;
  const std::int64_t first = fields.count("max_window_layers", kDefaultMaxWindowLayers, 0);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    windowed.push_back(layer >= first);
  return windowed;
}

}  // namespace

void read_qwen_windows(const ConfigReader& fields, ModelConfig& config) {
  if (!fields.flag("use_sliding_window", false) || fields.is_null("sliding_window")) {
    refuse_windows_without_size(fields, config, "use_sliding_window and sliding_window");
    return;
  }
  set_windows(fields.count("sliding_window", kDefaultWindowTokens),
              find_windowed_layers(fields, config), config);
}

void write_qwen_windows(const ModelConfig& config, nlohmann::ordered_json& fields) {
  const bool windowed = config.sliding_window_tokens > 0;
  fields["use_sliding_window"] = windowed;
  fields["sliding_window"] = windowed ? config.sliding_window_tokens : config.max_positions;
  fields["max_window_layers"] = windowed ? 0 : config.num_layers;
  write_layer_types(config, fields);
}

}  // namespace sluice
