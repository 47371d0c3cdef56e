#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "perfmodels/placement.h"

namespace sluice {

/// Where everything lives that lives for the whole run.
struct MemoryPlan {
  std::vector<LayerHomes> layers;
  Tier embedding = Tier::ddr;
  Tier lm_head = Tier::ddr;
  /// Where the LM head runs; nothing: on the device that reads its tier. Else its weight crosses.
  std::optional<Device> lm_head_device = std::nullopt;
  /// So many requests, the first ones, have their KV in HBM, whatever the layers' homes say.
  std::int64_t hbm_requests = 0;
  /// False: nothing ever runs on the GPU, so that HBM needs no room for what passes through.
  bool uses_gpu = true;

  std::int64_t resident_layers() const;
  std::vector<std::vector<std::int32_t>>
      hot_experts{};  ///< by layer: experts that live in HBM and run there; empty: none
};

/// What of the coming weights is on its way while the present ones compute: nothing, those of the
/// next half layer (attention or FFN: FlexGen's layer, HeLM Listing 1), or of the next whole layer.
enum class Prefetch : std::uint8_t { none, half_layer, layer };

/// How the tasks of one phase follow each other.
struct Pipeline {
  /// The batch is cut into so many parts, layer by layer; while one computes, the values of others
  /// move (LIA Optimization-2 in prefill, FlexGen's block schedule). 1: the whole batch at once.
  std::int64_t mini_batches = 1;
  /// `none`: every transfer waits for the computation before it, too.
  Prefetch prefetch = Prefetch::layer;
  /// plan_iteration() takes at most so many requests of the phase into one iteration, which the
  /// footprint counts on; 0: as many as there are.
  std::int64_t requests_at_once = 0;

  bool operator==(const Pipeline&) const = default;
};

}  // namespace sluice
