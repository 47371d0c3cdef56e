#include "perfmodels/timeline.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace sluice {

std::int64_t MemoryPlan::resident_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerHomes& homes) { return homes.resident(); });
}

BusyTimes& BusyTimes::operator+=(const BusyTimes& other) {
  cpu_s += other.cpu_s;
  gpu_s += other.gpu_s;
  to_gpu_s += other.to_gpu_s;
  to_cpu_s += other.to_cpu_s;
  disk_s += other.disk_s;
  return *this;
}

BusyTimes BusyTimes::operator*(double factor) const {
  return {cpu_s * factor, gpu_s * factor, to_gpu_s * factor, to_cpu_s * factor, disk_s * factor};
}

std::pair<std::string_view, double> BusyTimes::busiest() const {
  const std::array<std::pair<std::string_view, double>, 5> all = {{{"cpu", cpu_s},
                                                                   {"gpu", gpu_s},
                                                                   {"link to gpu", to_gpu_s},
                                                                   {"link to cpu", to_cpu_s},
                                                                   {"disk", disk_s}}};
  return *std::max_element(all.begin(), all.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

namespace {

constexpr std::size_t sublayers_per_layer = 6;

/// One sublayer of one chain.
struct Step {
  Device device = Device::cpu;
  double values_s = 0;  ///< must arrive before; comes from the chain itself
  double compute_s = 0;
  double store_s = 0;  ///< goes to `store_to` afterwards
  Device store_to = Device::cpu;
  /// Attention of other parts of the chain on the other device, beside this.
  double beside_s = 0;
};

/// Weights and cached KV that cross before a unit's steps, by the device that they go to.
struct UnitLoad {
  std::array<double, 2> to_s{};
  double disk_s = 0;
};

/// One layer of one chain, with what it loads.
struct ChainLayer {
  std::array<Step, sublayers_per_layer> steps;
  std::array<UnitLoad, 2> halves;  ///< attention's part, the FFN's
};

BatchShape all_rows(const Chain& chain) {
  BatchShape shape = chain.parts.front().shape;
  if (chain.parts.size() == 1) return shape;
  shape = {Phase::decode, 0, 1, 1};
  for (const ChainPart& part : chain.parts) {
    shape.batch += part.shape.total_rows();
    shape.context = std::max(shape.context, part.shape.context);
    if (part.shape.phase == Phase::prefill) shape.phase = Phase::prefill;
  }
  return shape;
}

double disk_part_s(const CostModel& costs, Tier home, double bytes) {
  return home == Tier::disk ? costs.transfer_s(Tier::disk, Tier::ddr, bytes) : 0;
}

/// Seconds that the disk works for a sublayer's weights.
double disk_s(const CostModel& costs, Sublayer sublayer, const LayerHomes& homes) {
  double seconds = 0;
  for (const WeightKind kind : weights_of(sublayer)) {
    const double bytes = costs.model().weight_bytes(weight_elements(costs.model(), kind));
    seconds += disk_part_s(costs, homes[kind], bytes);
  }
  return seconds;
}

/// Adds one part's attention (and the way home of its new KV) to the layer.
void add_attention(const CostModel& costs, const ChainPart& part, Placement placement,
                   LayerHomes homes, ChainLayer& layer) {
  const Device main = placement[Sublayer::qk];
  if (part.attention) placement[Sublayer::qk] = placement[Sublayer::sv] = *part.attention;
  if (part.kv) homes.kv = *part.kv;
  const LayerCost cost = layer_cost(costs, placement, part.shape, homes);
  layer.steps[0].store_s += cost.sublayers[0].store_s;
  layer.steps[0].store_to = reader_of(homes.kv).value_or(Device::cpu);
  for (std::size_t i = 1; i <= 2; ++i) {
    const SublayerCost& sublayer = cost.sublayers[i];
    const Device device = placement[layer_sublayers[i]];
    layer.halves[0].to_s[static_cast<std::size_t>(device)] += sublayer.stored_s;
    layer.steps[i].values_s += sublayer.values_s;
    // With parts on both devices the GPU's counts as the chain's own, the CPU's runs beside it.
    if (device == main) {
      layer.steps[i].compute_s += sublayer.compute_s;
    } else {
      layer.steps[i].beside_s += sublayer.compute_s;
    }
  }
  if (placement[Sublayer::sv] != placement[Sublayer::out_proj] || main != placement[Sublayer::sv])
    layer.steps[3].values_s += cost.sublayers[3].values_s;
}

ChainLayer make_layer(const CostModel& costs, const Chain& chain, std::size_t index,
                      const LayerHomes& homes) {
  ChainLayer layer;
  const Placement& placement = chain.placements[index];
  const LayerCost cost = layer_cost(costs, placement, all_rows(chain), homes);
  for (std::size_t i = 0; i < sublayers_per_layer; ++i) {
    Step& step = layer.steps[i];
    step.device = placement[layer_sublayers[i]];
    if (i == 1 || i == 2) continue;  // by part
    step.compute_s = cost.sublayers[i].compute_s;
    if (i != 3) step.values_s = cost.sublayers[i].values_s;
    UnitLoad& half = layer.halves[i < 4 ? 0 : 1];
    half.to_s[static_cast<std::size_t>(step.device)] += cost.sublayers[i].stored_s;
    half.disk_s += disk_s(costs, layer_sublayers[i], homes);
  }
  for (const ChainPart& part : chain.parts) add_attention(costs, part, placement, homes, layer);
  return layer;
}

/// Everything that happens, in time.
class Simulation {
 public:
  Simulation(const CostModel& costs, const MemoryPlan& memory, std::span<const Chain> chains,
             Prefetch prefetch, std::int64_t iterations)
      : costs_(costs),
        memory_(memory),
        chains_(chains),
        prefetch_(prefetch),
        units_per_layer_(prefetch == Prefetch::half_layer ? 2 : 1),
        num_layers_(memory.layers.size()),
        iterations_(static_cast<std::size_t>(iterations)) {
    for (const Chain& chain : chains) {
      std::vector<ChainLayer>& layers = layers_.emplace_back();
      for (std::size_t i = 0; i < num_layers_; ++i)
        layers.push_back(make_layer(costs, chain, i, memory.layers[i]));
    }
    const std::size_t units = num_layers_ * units_per_layer_ * iterations_;
    unit_ready_.assign(units, -1);
    unit_done_.assign(units, 0);
    unit_passed_.assign(units, 0);
  }

  /// The last iteration's time, and what was busy in a mean one.
  IterationEstimate run() {
    std::vector<Cursor> cursors(chains_.size());
    std::vector<double> iteration_end(iterations_ + 1, 0);
    for (std::size_t running = cursors.size(); running > 0;) {
      const std::size_t c = earliest(cursors);
      Cursor& cursor = cursors[c];
      step(c, cursor);
      if (!advance(c, cursor)) continue;
      iteration_end[cursor.iteration] = std::max(iteration_end[cursor.iteration], cursor.ready);
      if (cursor.iteration == iterations_) --running;
    }
    const double end = iterations_ == 1 ? end_ : iteration_end[iterations_];
    return {end - iteration_end[iterations_ - 1], busy_ * (1.0 / static_cast<double>(iterations_))};
  }

 private:
  struct Cursor {
    std::size_t iteration = 0;
    std::size_t layer = 0;
    std::size_t step = 0;
    double ready = 0;  ///< when its values are there
  };

  bool serial() const { return prefetch_ == Prefetch::none; }
  std::size_t unit_of(const Cursor& cursor) const {
    const std::size_t layer = cursor.iteration * num_layers_ + cursor.layer;
    return layer * units_per_layer_ + (units_per_layer_ == 2 && cursor.step >= 4 ? 1 : 0);
  }

  /// Weights of a unit take the place of those two units before, when all chains are done with
  /// them.
  bool may_load(std::size_t unit) const {
    return unit < 2 || unit_passed_[unit - 2] == chains_.size();
  }

  /// The chain whose next step can start first; the lower layer, then the earlier chain, of equals.
  std::size_t earliest(const std::vector<Cursor>& cursors) {
    std::size_t best = 0;
    double best_start = std::numeric_limits<double>::infinity();
    std::size_t best_layer = 0;
    for (std::size_t c = 0; c < cursors.size(); ++c) {
      const Cursor& cursor = cursors[c];
      if (cursor.iteration == iterations_ || !may_load(unit_of(cursor))) continue;
      const Step& step = layers_[c][cursor.layer].steps[cursor.step];
      const double start = std::max(cursor.ready, device_free_[index(step.device)]);
      const std::size_t layer = cursor.iteration * num_layers_ + cursor.layer;
      if (start < best_start || (start == best_start && layer < best_layer)) {
        best = c;
        best_start = start;
        best_layer = layer;
      }
    }
    return best;
  }

  static std::size_t index(Device device) { return static_cast<std::size_t>(device); }
  double& link_busy(std::size_t device) {
    return static_cast<Device>(device) == Device::gpu ? busy_.to_gpu_s : busy_.to_cpu_s;
  }

  /// What a unit loads: of each chain the KV, of the weights one copy.
  UnitLoad unit_load(std::size_t unit) const {
    const std::size_t layer = unit / units_per_layer_ % num_layers_;
    UnitLoad sum;
    for (std::size_t half = 0; half < 2; ++half) {
      if (units_per_layer_ == 2 && half != unit % 2) continue;
      UnitLoad load = layers_[0][layer].halves[half];
      // The weights' share is the same in each chain: only the KV of the others is added.
      for (std::size_t c = 1; c < layers_.size(); ++c) {
        if (half == 0) add_kv(c, layer, load);
      }
      for (std::size_t d = 0; d < 2; ++d) sum.to_s[d] += load.to_s[d];
      sum.disk_s += load.disk_s;
    }
    return sum;
  }

  void add_kv(std::size_t chain, std::size_t layer, UnitLoad& load) const {
    for (const ChainPart& part : chains_[chain].parts) {
      LayerHomes homes = memory_.layers[layer];
      if (part.kv) homes.kv = *part.kv;
      for (const Sublayer sublayer : {Sublayer::qk, Sublayer::sv}) {
        const Device device = part.attention.value_or(chains_[chain].placements[layer][sublayer]);
        if (reader_of(homes.kv) == device || part.shape.phase == Phase::prefill) continue;
        const double bytes = sublayer_work(costs_.model(), sublayer, part.shape).y_bytes;
        load.to_s[index(device)] += costs_.transfer_s(homes.kv, own_tier(device), bytes);
      }
    }
  }

  /// When the unit's weights are on the devices; loads them, and the units before, if need be.
  double unit_ready(std::size_t unit, double asked) {
    while (next_load_ <= unit) {
      const UnitLoad load = unit_load(next_load_);
      double ready = 0;
      const double allowed = serial()         ? std::max(asked, end_)
                             : next_load_ < 2 ? 0
                                              : unit_done_[next_load_ - 2];
      for (std::size_t d = 0; d < 2; ++d) {
        if (load.to_s[d] == 0) continue;
        stream_free_[d] = std::max(stream_free_[d], allowed) + load.to_s[d];
        link_busy(d) += load.to_s[d];
        ready = std::max(ready, stream_free_[d]);
      }
      busy_.disk_s += load.disk_s;
      unit_ready_[next_load_++] = ready;
      if (serial()) end_ = std::max(end_, ready);
    }
    return unit_ready_[unit];
  }

  /// Values go before weights: whatever of those was under way is late by as much.
  double move(std::size_t device, double ready, double seconds) {
    if (seconds == 0) return ready;
    if (serial()) ready = std::max(ready, end_);
    const double start = std::max(ready, values_free_[device]);
    values_free_[device] = start + seconds;
    if (stream_free_[device] > start) stream_free_[device] += seconds;
    link_busy(device) += seconds;
    end_ = std::max(end_, start + seconds);
    return start + seconds;
  }

  double compute(Device device, double ready, double seconds) {
    const double start = std::max(ready, device_free_[index(device)]);
    device_free_[index(device)] = start + seconds;
    (device == Device::gpu ? busy_.gpu_s : busy_.cpu_s) += seconds;
    end_ = std::max(end_, start + seconds);
    return start + seconds;
  }

  void step(std::size_t c, Cursor& cursor) {
    const Step& step = layers_[c][cursor.layer].steps[cursor.step];
    double ready = std::max(cursor.ready, unit_ready(unit_of(cursor), cursor.ready));
    ready = move(index(step.device), ready, step.values_s);
    if (serial()) ready = std::max(ready, end_);
    const double start = ready;
    ready = compute(step.device, start, step.compute_s);
    if (step.beside_s > 0) {
      const Device beside = step.device == Device::gpu ? Device::cpu : Device::gpu;
      ready = std::max(ready, compute(beside, start, step.beside_s));
    }
    if (step.store_s > 0) {
      const double stored = move(index(step.store_to), ready, step.store_s);
      if (serial()) ready = stored;
    }
    cursor.ready = ready;
  }

  /// To the next step; true at the end of an iteration, whose LM head it runs.
  bool advance(std::size_t c, Cursor& cursor) {
    const std::size_t unit = unit_of(cursor);
    const bool half_ends = units_per_layer_ == 2 && cursor.step == 3;
    ++cursor.step;
    if (half_ends || cursor.step == sublayers_per_layer) pass(unit, cursor.ready);
    if (cursor.step < sublayers_per_layer) return false;
    cursor.step = 0;
    if (chains_[c].takes_turns) swap_hidden_states(c, cursor);
    if (++cursor.layer < num_layers_) return false;
    cursor.layer = 0;
    ++cursor.iteration;
    head(c, cursor);
    return true;
  }

  void pass(std::size_t unit, double when) {
    unit_done_[unit] = std::max(unit_done_[unit], when);
    ++unit_passed_[unit];
  }

  /// A mini-batch's hidden states wait in DDR while others compute.
  void swap_hidden_states(std::size_t c, Cursor& cursor) {
    if (layers_[c][cursor.layer].steps.back().device != Device::gpu) return;
    const auto hidden = static_cast<double>(costs_.model().hidden_size);
    double bytes = 0;
    for (const ChainPart& part : chains_[c].parts)
      bytes += 2 * static_cast<double>(part.shape.total_rows()) * hidden;
    const double out =
        move(index(Device::cpu), cursor.ready, costs_.transfer_s(Tier::hbm, Tier::ddr, bytes));
    cursor.ready = move(index(Device::gpu), out, costs_.transfer_s(Tier::ddr, Tier::hbm, bytes));
  }

  void head(std::size_t c, Cursor& cursor) {
    const std::optional<Device> reader = reader_of(memory_.lm_head);
    const Device device = memory_.lm_head_device.value_or(reader.value_or(Device::cpu));
    if (reader != device) {
      const ModelDimensions& model = costs_.model();
      const double bytes =
          2 * static_cast<double>(model.vocab_size) * static_cast<double>(model.embed_size);
      cursor.ready = move(index(device), cursor.ready,
                          costs_.transfer_s(memory_.lm_head, own_tier(device), bytes));
    }
    std::int64_t rows = 0;
    for (const ChainPart& part : chains_[c].parts) rows += part.shape.batch;
    cursor.ready = compute(device, cursor.ready, costs_.lm_head_s(device, rows));
  }

  const CostModel& costs_;
  const MemoryPlan& memory_;
  std::span<const Chain> chains_;
  Prefetch prefetch_;
  std::size_t units_per_layer_;
  std::size_t num_layers_;
  std::size_t iterations_;
  std::vector<std::vector<ChainLayer>> layers_;  ///< by chain, then layer
  std::vector<double> unit_ready_;
  std::vector<double> unit_done_;
  std::vector<std::size_t> unit_passed_;  ///< chains that are done with it
  std::size_t next_load_ = 0;
  std::array<double, 2> device_free_{};
  std::array<double, 2> stream_free_{};  ///< weights, by the device that they go to
  std::array<double, 2> values_free_{};
  double end_ = 0;
  BusyTimes busy_;
};

}  // namespace

IterationEstimate estimate_iteration(const CostModel& costs, const MemoryPlan& memory,
                                     std::span<const Chain> chains, Prefetch prefetch,
                                     Start start) {
  return Simulation(costs, memory, chains, prefetch, start == Start::steady ? 2 : 1).run();
}

std::vector<Chain> cut_into_mini_batches(const BatchShape& shape, std::int64_t mini_batches,
                                         const std::vector<Placement>& placements) {
  std::vector<Chain> chains;
  const std::int64_t count = std::clamp<std::int64_t>(mini_batches, 1, shape.batch);
  for (std::int64_t i = 0; i < count; ++i) {
    BatchShape part = shape;
    part.batch = shape.batch * (i + 1) / count - shape.batch * i / count;
    chains.push_back(
        {.parts = {{.shape = part}}, .placements = placements, .takes_turns = count > 1});
  }
  return chains;
}

}  // namespace sluice
