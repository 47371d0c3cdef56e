#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/config.h"
#include "models/config_reader.h"

namespace sluice {

/// Reads rotary embedding: rope_theta, and rope_parameters (Transformers 5) or rope_scaling. Where
/// both are there rope_scaling takes the place of rope_parameters as a whole, as in Transformers.
/// Needs head_dim and max_positions; extends or cuts max_positions where the type says how far it
/// reaches. A family that rotates a part of each head alone has a `default_part` of it for where
/// partial_rotary_factor is missing; others refuse that field. Throws Error for a type that is not
/// known, and for layers that rotate differently.
void read_rope(const ConfigReader& fields, ModelConfig& config,
               std::optional<double> default_part = {});
void write_rope(const ModelConfig& config, nlohmann::ordered_json& fields);

}  // namespace sluice
