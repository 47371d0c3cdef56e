#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/config.h"
#include "models/config_reader.h"

namespace sluice {

/// Qwen's sliding windows: use_sliding_window, sliding_window, max_window_layers, layer_types.
/// Throws Error where layer_types has windows whose length is not said.
void read_qwen_windows(const ConfigReader& fields, ModelConfig& config);
void write_qwen_windows(const ModelConfig& config, nlohmann::ordered_json& fields);

}  // namespace sluice
