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
  std::string_view key = {};  ///< what config.json calls their number; empty: see read_experts()
};

/// The number of experts (of the default's name; or num_experts or num_local_experts, which are one
/// field under two names) and num_experts_per_tok (or experts_per_token). Throws Error for counts
/// that do not fit each
/// other.
void read_experts(const ConfigReader& fields, const MixtureDefaults& defaults, ModelConfig& config);

/// A sigmoid router with corrections: n_group, topk_group, norm_topk_prob, routed_scaling_factor.
/// Behind read_experts(); `key` is what that read. Throws Error for groups that do not fit.
void read_sigmoid_router(const ConfigReader& fields, std::string_view key, ModelConfig& config);
void write_sigmoid_router(const ModelConfig& config, nlohmann::ordered_json& fields);

/// first_k_dense_replace: so many layers at the front have one FFN and no experts, which is
/// intermediate_size wide. Throws Error.
void read_first_dense_layers(const ConfigReader& fields, std::int64_t default_count,
                             ModelConfig& config);

/// Which layers have one FFN and no experts: all but each decoder_sparse_step-th, and those of
/// mlp_only_layers. Their FFN is intermediate_size wide. Throws Error.
void read_dense_layers(const ConfigReader& fields, ModelConfig& config);
void write_dense_layers(const ModelConfig& config, nlohmann::ordered_json& fields);

}  // namespace sluice
