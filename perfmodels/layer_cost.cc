#include "perfmodels/layer_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "perfmodels/hot_experts.h"

namespace sluice {
namespace {

std::size_t index_of(Sublayer sublayer) { return static_cast<std::size_t>(sublayer) - 1; }

Device other(Device device) { return device == Device::gpu ? Device::cpu : Device::gpu; }

/// Seconds that an operand takes from its home to a device.
double load_s(const CostModel& costs, Tier home, Device device, double bytes) {
  if (reader_of(home) == device) return 0;
  return costs.transfer_s(home, own_tier(device), bytes);
}

/// Seconds between the devices' memories, in the direction to `device`.
double cross_s(const CostModel& costs, Device device, double bytes) {
  return costs.transfer_s(own_tier(other(device)), own_tier(device), bytes);
}

bool both_devices(const CostModel& costs) {
  return costs.has(Device::gpu) && costs.has(Device::cpu);
}

/// Every term of the equations for one layer, so that each of 64 placements costs only additions.
class Layer {
 public:
  Layer(const CostModel& costs, const BatchShape& shape, const LayerHomes& homes)
      : costs_(costs), shape_(shape), homes_(homes), prefill_(shape.phase == Phase::prefill) {
    const ModelDimensions& model = costs.model();
    if (both_devices(costs)) hot_ = hot_experts(homes);
    const auto tokens = static_cast<double>(shape.total_rows());
    residual_bytes_ = activation_element_bytes * tokens * static_cast<double>(model.hidden_size);
    score_bytes_ = activation_element_bytes * tokens * static_cast<double>(model.num_heads) *
                   visible_tokens(model, shape);
    new_kv_bytes_ = tokens * kv_bytes_per_token(model);
    for (const Sublayer sublayer : layer_sublayers)
      work_[index_of(sublayer)] = sublayer_work(model, sublayer, shape);
    for (const Device device : {Device::gpu, Device::cpu}) {
      if (costs.has(device)) fill(device);
    }
    if (homes.kv == Tier::disk) write_kv_s_ = write_kv_s(costs, shape);
    if (hot_ != nullptr) fill_hot();
  }

  LayerCost cost(const Placement& p) const {
    LayerCost cost;
    cost.placement = p;
    Device before = p[Sublayer::fc2];
    std::size_t in_stage = 0;  // sublayers of the stage, this one included
    for (const Sublayer sublayer : layer_sublayers) {
      const std::size_t i = index_of(sublayer);
      const Device device = p[sublayer];
      const std::size_t d = static_cast<std::size_t>(device);
      in_stage = device == before ? in_stage + 1 : 1;
      SublayerCost& here = cost.sublayers[i];
      here.compute_s = compute_s_[i][d] + overhead_s_[in_stage - 1][d];
      if (device != before) here.values_s += load_x_s_[i][d];
      if (attends(sublayer) && prefill_) {
        here.values_s += fresh_kv_s(p, sublayer);
      } else {
        const bool shares_slab = attends(sublayer) && p[Sublayer::qk] != p[Sublayer::sv];
        here.stored_s = shares_slab ? load_slab_s_[d] : load_y_s_[i][d];
      }
      if (sublayer == Sublayer::out_proj && device != p[Sublayer::qkv])
        here.values_s += residual_s_[d];
      if (sublayer == Sublayer::fc2 && device != p[Sublayer::out_proj])
        here.values_s += residual_s_[d];
      if (sublayer == Sublayer::qkv) {
        here.store_s = store_kv_s_[d] + write_kv_s_;
        here.write_s = write_kv_s_;
      }
      before = device;
    }
    if (hot_ != nullptr && p[Sublayer::fc1] == Device::cpu) add_hot(p, cost);
    return cost;
  }

 private:
  static bool attends(Sublayer sublayer) {
    return sublayer == Sublayer::qk || sublayer == Sublayer::sv;
  }

  double fresh_kv_s(const Placement& p, Sublayer sublayer) const {
    const Device device = p[sublayer];
    if (device == p[Sublayer::qkv]) return 0;
    return fresh_kv_s_[static_cast<std::size_t>(device)];
  }

  /// Hot experts read what the router gives, which runs where sublayer 4 does, as the join does.
  void add_hot(const Placement& p, LayerCost& cost) const {
    SublayerCost& fc1 = cost.sublayers[index_of(Sublayer::fc1)];
    fc1.hot_s = hot_s_;
    if (p[Sublayer::out_proj] == Device::gpu) return;
    fc1.hot_values_s = residual_s_[static_cast<std::size_t>(Device::gpu)];
    fc1.hot_sum_s = residual_s_[static_cast<std::size_t>(Device::cpu)];
  }

  void fill_hot() {
    const ExpertPart part = hot_->hot(costs_.model(), static_cast<double>(shape_.total_rows()));
    hot_s_ = costs_.task_overhead_s(Device::gpu, 2);
    for (const Sublayer sublayer : {Sublayer::fc1, Sublayer::fc2})
      hot_s_ += costs_.experts_s(Device::gpu, sublayer, shape_, Tier::hbm, part);
  }

  /// What a device computes of a sublayer: all but for hot experts, which the GPU has anyway.
  double kernel_s(Device device, Sublayer sublayer, Tier operand) const {
    const bool of_cold = hot_ != nullptr && device == Device::cpu && sublayer >= Sublayer::fc1;
    if (!of_cold) return costs_.compute_s(device, sublayer, shape_, operand);
    return costs_.experts_s(device, sublayer, shape_, operand,
                            hot_->cold(costs_.model(), static_cast<double>(shape_.total_rows())));
  }

  void fill(Device device) {
    const std::size_t d = static_cast<std::size_t>(device);
    const bool crossing = both_devices(costs_);
    for (const Sublayer sublayer : layer_sublayers) {
      const std::size_t i = index_of(sublayer);
      const std::span<const WeightKind> weights = weights_of(sublayer);
      // What comes from elsewhere is computed on where it has arrived.
      Tier operand = weights.empty() ? homes_.kv : homes_[weights.front()];
      if (reader_of(operand) != device) operand = own_tier(device);
      compute_s_[i][d] = kernel_s(device, sublayer, operand);
      load_y_s_[i][d] =
          weights.empty()
              ? load_s(costs_, homes_.kv, device, context_kv_bytes(costs_.model(), shape_))
              : load_weights_s(device, weights, sublayer_weight_bytes(costs_.model(), sublayer));
      const double x_bytes = sublayer == Sublayer::sv ? score_bytes_ : work_[i].x_bytes;
      if (crossing) load_x_s_[i][d] = cross_s(costs_, device, x_bytes);
    }
    load_slab_s_[d] = load_s(costs_, homes_.kv, device, context_slab_bytes(costs_.model(), shape_));
    double before_s = 0;
    for (std::size_t i = 0; i < overhead_s_.size(); ++i) {
      const double with_s = costs_.task_overhead_s(device, static_cast<int>(i) + 1);
      overhead_s_[i][d] = with_s - std::exchange(before_s, with_s);
    }
    if (crossing) {
      residual_s_[d] = cross_s(costs_, device, residual_bytes_);
      fresh_kv_s_[d] = cross_s(costs_, device, new_kv_bytes_ / 2);
    }
    // From a disk's point of view DDR is on the way.
    const Tier nearest = homes_.kv == Tier::disk ? Tier::ddr : homes_.kv;
    if (reader_of(nearest) != device)
      store_kv_s_[d] = costs_.transfer_s(own_tier(device), nearest, new_kv_bytes_);
  }

  /// Seconds for those of a sublayer's weights that the device does not read where they live.
  double load_weights_s(Device device, std::span<const WeightKind> weights, double y_bytes) const {
    double elements = 0;
    for (const WeightKind weight : weights) elements += weight_elements(costs_.model(), weight);
    double seconds = 0;
    for (const WeightKind weight : weights) {
      const double share = weight_elements(costs_.model(), weight) / elements;
      const double outside = 1 - hot_share(costs_.model(), homes_, weight);
      seconds += load_s(costs_, homes_[weight], device, y_bytes * share * outside);
    }
    return seconds;
  }

  using ByDevice = std::array<double, 2>;
  const CostModel& costs_;
  const BatchShape& shape_;
  const LayerHomes& homes_;
  bool prefill_;
  double residual_bytes_ = 0;
  double score_bytes_ = 0;
  double new_kv_bytes_ = 0;
  std::array<SublayerWork, 6> work_{};
  std::array<ByDevice, 6> compute_s_{};
  std::array<ByDevice, 6> overhead_s_{};  ///< that the nth sublayer of a stage adds
  std::array<ByDevice, 6> load_x_s_{};    ///< to a device, from the other one
  std::array<ByDevice, 6> load_y_s_{};    ///< from home
  ByDevice load_slab_s_{};                ///< of cached K and V from home
  ByDevice residual_s_{};
  ByDevice fresh_kv_s_{};  ///< K or V that sublayer 1 has just made on the other device
  ByDevice store_kv_s_{};  ///< as far as DDR, where KV lives on a disk
  double write_kv_s_ = 0;
  const CountedHotExperts* hot_ = nullptr;
  double hot_s_ = 0;
};

int changes(const Placement& p) {
  int count = 0;
  Device before = p[Sublayer::fc2];
  for (const Sublayer sublayer : layer_sublayers) {
    count += p[sublayer] != before ? 1 : 0;
    before = p[sublayer];
  }
  return count;
}

double seconds_of(const LayerCost& cost, Overlap overlap) {
  switch (overlap) {
    case Overlap::none:
      return cost.sum_s();
    case Overlap::transfers:
      return cost.overlapped_s();
    case Overlap::stored:
      return cost.chained_s();
  }
  return 0;
}

}  // namespace

double write_kv_s(const CostModel& costs, const BatchShape& shape) {
  const auto page = static_cast<double>(page_tokens);
  const auto batch = static_cast<double>(shape.batch);
  const double token_bytes = kv_bytes_per_token(costs.model());
  const double pages = std::ceil(static_cast<double>(shape.rows) / page);
  const double seconds =
      costs.transfer_s(Tier::ddr, Tier::disk, batch * pages * page * token_bytes);
  if (shape.phase == Phase::prefill) return seconds;
  // A new page's first token finds none of its sequence's there.
  return seconds + costs.transfer_s(Tier::disk, Tier::ddr, batch * (page - 1) * token_bytes);
}

double LayerCost::load_s() const {
  double sum = 0;
  for (const SublayerCost& sublayer : sublayers) sum += sublayer.load_s();
  return sum;
}

double LayerCost::compute_s(Device device) const {
  double sum = 0;
  for (const Sublayer sublayer : layer_sublayers) {
    const SublayerCost& cost = sublayers[index_of(sublayer)];
    if (placement[sublayer] == device) sum += cost.compute_s;
    if (device == Device::gpu) sum += cost.hot_s;
  }
  return sum;
}

double LayerCost::store_s() const {
  double sum = 0;
  for (const SublayerCost& sublayer : sublayers) sum += sublayer.store_s;
  return sum;
}

double LayerCost::sum_s() const {
  double sum = 0;
  for (const SublayerCost& sublayer : sublayers) sum += sublayer.total_s();
  const SublayerCost& fc1 = sublayers[index_of(Sublayer::fc1)];
  const double cold_s = fc1.total_s() + sublayers[index_of(Sublayer::fc2)].total_s();
  return sum + std::max(0.0, fc1.hot_values_s + fc1.hot_s + fc1.hot_sum_s - cold_s);
}

double LayerCost::computing_s() const {
  const SublayerCost& fc1 = sublayers[index_of(Sublayer::fc1)];
  const double cold_s = fc1.compute_s + sublayers[index_of(Sublayer::fc2)].compute_s;
  return compute_s(Device::gpu) + compute_s(Device::cpu) - std::min(cold_s, fc1.hot_s);
}

double LayerCost::overlapped_s() const {
  const SublayerCost& fc1 = sublayers[index_of(Sublayer::fc1)];
  return std::max({load_s() + fc1.hot_values_s, store_s() + fc1.hot_sum_s, computing_s()});
}

double LayerCost::chained_s() const {
  double stored_s = 0;
  double values_s = 0;
  for (const SublayerCost& sublayer : sublayers) {
    stored_s += sublayer.stored_s;
    values_s += sublayer.values_s;
  }
  return std::max({stored_s, store_s(), values_s + computing_s()});
}

LayerCost layer_cost(const CostModel& costs, const Placement& placement, const BatchShape& shape,
                     const LayerHomes& homes) {
  return Layer(costs, shape, homes).cost(placement);
}

LayerCost best_placement(const CostModel& costs, const BatchShape& shape, const LayerHomes& homes,
                         Overlap overlap) {
  const Layer layer(costs, shape, homes);
  LayerCost best;
  double best_s = std::numeric_limits<double>::infinity();
  for (unsigned bits = 0; bits < num_placements; ++bits) {
    const Placement placement = Placement::from_bits(bits);
    if (!can_place(costs.model(), placement)) continue;
    if (placement.uses(Device::gpu) && !costs.has(Device::gpu)) continue;
    if (placement.uses(Device::cpu) && !costs.has(Device::cpu)) continue;
    const LayerCost cost = layer.cost(placement);
    const double seconds = seconds_of(cost, overlap);
    if (seconds < best_s || (seconds == best_s && changes(placement) < changes(best.placement))) {
      best = cost;
      best_s = seconds;
    }
  }
  return best;
}

}  // namespace sluice
