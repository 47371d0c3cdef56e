#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "perfmodels/cost_model.h"
#include "perfmodels/layer_cost.h"

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
};

/// Requests of one kind within a chain.
struct ChainPart {
  BatchShape shape;
  /// Where their attention runs (sublayers 2 and 3); nothing: where the placement says.
  std::optional<Device> attention = std::nullopt;
  /// Where their KV lives; nothing: where the layer's does.
  std::optional<Tier> kv = std::nullopt;
};

/// One sub-batch's chain of tasks through all layers.
struct Chain {
  std::vector<ChainPart> parts;       ///< most often one
  std::vector<Placement> placements;  ///< by layer
  /// A mini-batch: its hidden states wait in DDR while others compute on the GPU.
  bool takes_turns = false;
};

/// Seconds for which each part of the machine is busy.
struct BusyTimes {
  double cpu_s = 0;
  double gpu_s = 0;
  double to_gpu_s = 0;  ///< on the link to the GPU: weights, KV, values
  double to_cpu_s = 0;  ///< from it
  double disk_s = 0;

  BusyTimes& operator+=(const BusyTimes& other);
  BusyTimes operator*(double factor) const;
  using Part = std::pair<std::string_view, double>;
  /// Each with its name: "cpu", "gpu", "link to gpu", "link to cpu", "disk".
  std::array<Part, 5> parts() const;
  Part busiest() const;
};

/// One iteration.
struct IterationEstimate {
  double seconds = 0;
  BusyTimes busy;
};

enum class Start : std::uint8_t {
  cold,    ///< nothing is loaded
  steady,  ///< the iteration follows one like it, whose end its first loads overlap
};

/// How long an iteration of these chains takes: their tasks in the order in which they can start
/// (of equals the chain that the device has just worked for, then the lower layer, then the earlier
/// chain), each device and each direction of a link one
/// thing at a time. Weights of unit u (a layer or half of one, as `prefetch` says) may cross as
/// soon as all chains are done with unit u-2, in that order, and values go before them: weights
/// under way wait. All chains use one copy of the weights. What comes from a disk passes through
/// DDR meanwhile. From the last layer's sublayer 4 on only one row a sequence is left, which draws
/// a token. Never less than what the busiest part of the machine needs.
IterationEstimate estimate_iteration(const CostModel& costs, const MemoryPlan& memory,
                                     std::span<const Chain> chains, Prefetch prefetch, Start start);

/// The chains of a whole batch under a pipeline: mini_batches equal parts.
std::vector<Chain> cut_into_mini_batches(const BatchShape& shape, std::int64_t mini_batches,
                                         const std::vector<Placement>& placements);

}  // namespace sluice
