#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perfmodels/footprint.h"
#include "schedulers/checked_policy.h"

namespace sluice {

/// What `plan` and `simulate` are asked for: every combination is a point.
struct PointLists {
  std::vector<std::string> models;
  std::vector<std::string> machines;
  std::vector<std::string> policies;  ///< names or files, or any_policy
  std::map<std::string, std::string> policy_options;
  std::vector<std::int64_t> batches;  ///< as_many_as_fit among them
  std::vector<std::int64_t> input_tokens;
  std::vector<std::int64_t> output_tokens;
  /// Nobody asked for those lengths: a model with a shorter context has shorter ones.
  bool are_lengths_defaults = false;
  double weight_bits = 16;
  HostTiers host_tiers;

  std::size_t size() const {
    return models.size() * machines.size() * policies.size() * batches.size() *
           input_tokens.size() * output_tokens.size();
  }
  /// By output length, then input length, then batch, for a model with so long a context.
  std::vector<Workload> workloads(std::int64_t max_positions) const;
};

/// Stands for the fastest of all policies that come with Sluice.
inline constexpr const char* any_policy = "auto";

}  // namespace sluice
