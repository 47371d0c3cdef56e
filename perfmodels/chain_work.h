#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "perfmodels/chain.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/memory_plan.h"

namespace sluice {

inline constexpr std::size_t sublayers_per_layer = 6;
/// The step that needs the attention of all of a chain's parts.
inline constexpr std::size_t attention_joins = 3;

/// A device's place in what is kept for each.
constexpr std::size_t index(Device device) { return static_cast<std::size_t>(device); }

/// One sublayer of one chain.
struct ChainStep {
  Device device = Device::cpu;
  double values_s = 0;  ///< must arrive before; comes from the chain itself
  double compute_s = 0;
  double store_s = 0;  ///< goes to `store_to` afterwards
  Device store_to = Device::cpu;
  double write_s = 0;  ///< and then the CPU writes it to a disk
  /// Tasks that store new KV, by device: behind sublayer 1, or between attention and sublayer 4.
  std::array<double, 2> kv_store_s{};
  /// On the other device meanwhile: attention of other parts of the chain, both sublayers, which
  /// begins with sublayer 2 and must be done before sublayer 4; or hot experts, which begin with
  /// sublayer 5 and must be done behind 6.
  double beside_s = 0;
  double beside_values_s = 0;  ///< to the other device
  double beside_back_s = 0;    ///< from it, afterwards
};

/// Weights and cached KV that cross before a unit's steps.
struct UnitLoad {
  std::array<double, 2> link_s{};                ///< by the device that they go to
  std::array<std::vector<double>, 2> tensors_s;  ///< of that each one's, in order
  double weight_bytes = 0;                       ///< to the GPU
  bool has_kv = false;
  double disk_s = 0;
  /// Of the link's time, what is left when the disk is done: of the tensor that it reads last.
  double behind_disk_s = 0;

  /// So many equal tensors.
  void cut(std::int64_t count);
  bool is_nothing() const { return link_s[0] == 0 && link_s[1] == 0 && disk_s == 0; }
  UnitLoad& operator+=(const UnitLoad& other) {
    for (std::size_t d = 0; d < link_s.size(); ++d) {
      link_s[d] += other.link_s[d];
      tensors_s[d].insert(tensors_s[d].end(), other.tensors_s[d].begin(), other.tensors_s[d].end());
    }
    weight_bytes += other.weight_bytes;
    has_kv = has_kv || other.has_kv;
    disk_s += other.disk_s;
    if (other.disk_s > 0) behind_disk_s = other.behind_disk_s;
    return *this;
  }
};

using ChainLayer = std::array<ChainStep, sublayers_per_layer>;
/// What one layer loads for all chains: attention's part, the FFN's.
using LayerLoads = std::array<UnitLoad, 2>;

/// The steps of one layer of a chain, by the equations of layer_cost(); `ChainPart`s attend by
/// themselves. Of the last layer, from sublayer 4 on, only the rows that draw a token.
ChainLayer make_chain_layer(const CostModel& costs, const Chain& chain, std::size_t layer,
                            const MemoryPlan& memory);

/// What a layer loads for all chains: the KV of each, of the weights one copy for each device that
/// multiplies with them, of a mixture all experts.
LayerLoads make_layer_loads(const CostModel& costs, std::span<const Chain> chains,
                            std::size_t layer, const MemoryPlan& memory);

/// Takes off what the task system does not take where layers of the only chain are one task.
void join_layers(const CostModel& costs, const Chain& chain, const MemoryPlan& memory,
                 std::vector<ChainLayer>& layers);

/// Seconds for which a chain's hidden states cross to a device's memory between two layers.
double hidden_states_s(const CostModel& costs, const Chain& chain, Device to);

/// The LM head of a chain, which draws one token a sequence.
struct HeadStep {
  Device device = Device::cpu;
  double load_s = 0;  ///< the head's weight, where that lives elsewhere
  double compute_s = 0;
};
HeadStep make_head(const CostModel& costs, const Chain& chain, const MemoryPlan& memory);

}  // namespace sluice
