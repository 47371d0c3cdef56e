#pragma once

#include <string>
#include <string_view>

#include "models/config.h"

namespace sluice {

/// Reads config.json: both its old fields (rope_theta, rope_scaling, torch_dtype) and Transformers
/// 5's (rope_parameters, dtype). `where` names the file. Throws Error: what field, what was found
/// and expected.
ModelConfig parse_config(std::string_view text, const std::string& where);

/// The config.json / generation_config.json of a model, as Hugging Face publishes them.
/// Without quantization_config: of the model with its weights plain. Throws Error for a family that
/// has no checkpoints ("chinchilla").
std::string config_json(const ModelConfig& config);
std::string generation_config_json(const ModelConfig& config);

}  // namespace sluice
