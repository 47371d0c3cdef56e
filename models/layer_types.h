#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/config_reader.h"

namespace sluice {

/// More are taken for a damaged file.
constexpr std::int64_t most_layers = 10000;

/// config.json's layer_types: whether each layer's attention slides; empty when the field is
/// missing. Throws Error for another number of layers and for other types of attention.
std::vector<bool> read_layer_types(const ConfigReader& fields, const ModelConfig& config);

/// Sets the window of these layers: none, all or some. `windowed` is empty for all.
void set_windows(std::int64_t window_tokens, std::vector<bool> windowed, ModelConfig& config);

/// Throws Error where layer_types has windows and nothing says how long they are; `size_fields` are
/// the fields that would.
void refuse_windows_without_size(const ConfigReader& fields, const ModelConfig& config,
                                 std::string_view size_fields);

/// Writes layer_types where layers differ.
void write_layer_types(const ModelConfig& config, nlohmann::ordered_json& fields);

}  // namespace sluice
