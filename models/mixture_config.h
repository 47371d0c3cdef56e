#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/config.h"
#include "models/config_reader.h"

namespace sluice {

/// What a family's config.json says when it does not name them.
struct MixtureDefaults {
  std::int64_t num_experts;
  std::int64_t experts_per_token;
};

/// The number of experts (num_experts or num_local_experts, which are one field under two names)
/// and num_experts_per_tok (or experts_per_token). Throws Error for counts that do not fit each
/// other.
void read_experts(const ConfigReader& fields, const MixtureDefaults& defaults, ModelConfig& config);

/// Which layers have one FFN and no experts: all but each decoder_sparse_step-th, and those of
/// mlp_only_layers. Their FFN is intermediate_size wide. Throws Error.
void read_dense_layers(const ConfigReader& fields, ModelConfig& config);
void write_dense_layers(const ModelConfig& config, nlohmann::ordered_json& fields);

}  // namespace sluice
