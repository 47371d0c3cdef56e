#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/draw/picture.h"
#include "perfmodels/cost_model.h"
#include "schedulers/checked_policy.h"

namespace sluice {

/// A policy's placement of a layer that is not resident, over batch and input length (LIA Figure
/// 9).
struct PolicyMap {
  std::string model;
  std::string machine;
  std::vector<std::int64_t> batches;       ///< ascending
  std::vector<std::int64_t> input_tokens;  ///< ascending
  /// By phase, then input_tokens, then batches.
  std::array<std::vector<std::vector<Placement>>, 2> placements;
};

/// Batches 1 to 2048 and inputs 32 to 2048, evenly in powers of two.
PolicyMap make_policy_map(CheckedPolicy& policy, const CostModel& costs, const std::string& model,
                          const std::string& machine);

/// A pair of fields for each map, prefill and decode, a colour and a letter a placement, with a
/// legend.
std::string draw_policy_maps(const std::vector<PolicyMap>& maps, PictureFormat format);

/// The same with a letter a placement, input lengths downwards.
std::string policy_maps_as_text(const std::vector<PolicyMap>& maps);

/// The same as an array of objects: `prefill` and `decode` are rows by input length of placements
/// by batch.
std::string policy_maps_as_json(const std::vector<PolicyMap>& maps);

}  // namespace sluice
