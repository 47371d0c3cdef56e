#include "perfmodels/timeline.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <tuple>

#include "perfmodels/layer_run.h"

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

std::array<BusyTimes::Part, 5> BusyTimes::parts() const {
  return {{{"cpu", cpu_s},
           {"gpu", gpu_s},
           {"link to gpu", to_gpu_s},
           {"link to cpu", to_cpu_s},
           {"disk", disk_s}}};
}

BusyTimes::Part BusyTimes::busiest() const {
  const auto all = parts();
  return *std::max_element(all.begin(), all.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
}

namespace {

constexpr std::size_t sublayers_per_layer = 6;
/// The step that needs the attention of all of a chain's parts.
constexpr std::size_t attention_joins = 3;

/// One sublayer of one chain.
struct Step {
  Device device = Device::cpu;
  double values_s = 0;  ///< must arrive before; comes from the chain itself
  double compute_s = 0;
  double store_s = 0;  ///< goes to `store_to` afterwards
  Device store_to = Device::cpu;
  double write_s = 0;  ///< and then the CPU writes it to a disk
  /// Attention of other parts of the chain on the other device, both sublayers; begins with
  /// sublayer 2 and must be done before sublayer 4.
  double beside_s = 0;
  double beside_values_s = 0;  ///< to the other device
};

/// Weights and cached KV that cross before a unit's steps.
struct UnitLoad {
  std::array<double, 2> link_s{};  ///< by the device that they go to
  double disk_s = 0;
  /// Of the link's time, what is left when the disk is done: of the tensor that it reads last.
  double behind_disk_s = 0;

  UnitLoad& operator+=(const UnitLoad& other) {
    for (std::size_t d = 0; d < link_s.size(); ++d) link_s[d] += other.link_s[d];
    disk_s += other.disk_s;
    if (other.disk_s > 0) behind_disk_s = other.behind_disk_s;
    return *this;
  }
};

using ChainLayer = std::array<Step, sublayers_per_layer>;
/// What one layer loads for all chains: attention's part, the FFN's.
using LayerLoads = std::array<UnitLoad, 2>;

std::size_t index(Device device) { return static_cast<std::size_t>(device); }

BatchShape all_rows(std::span<const ChainPart> parts) {
  if (parts.size() == 1) return parts.front().shape;
  BatchShape shape = {Phase::decode, 0, 1, 1};
  for (const ChainPart& part : parts) {
    shape.batch += part.shape.total_rows();
    shape.context = std::max(shape.context, part.shape.context);
    if (part.shape.phase == Phase::prefill) shape.phase = Phase::prefill;
  }
  return shape;
}

/// The rows that tokens are drawn from, one a sequence: all that the last layer has from sublayer 4
/// on.
BatchShape drawing_rows(BatchShape shape) {
  shape.rows = 1;
  return shape;
}
BatchShape drawing_rows(std::span<const ChainPart> parts) {
  BatchShape shape = drawing_rows(all_rows(parts));
  shape.batch = 0;
  for (const ChainPart& part : parts) shape.batch += part.shape.batch;
  return shape;
}

/// Adds the way of some bytes from their home to a device. From a disk they pass through DDR, each
/// tensor crosses the link while the next one is read.
void add_load(const CostModel& costs, Tier home, Device device, double bytes, UnitLoad& load) {
  if (reader_of(home) == device) return;
  if (home != Tier::disk) {
    load.link_s[index(device)] += costs.transfer_s(home, own_tier(device), bytes);
    return;
  }
  load.disk_s += costs.transfer_s(Tier::disk, Tier::ddr, bytes);
  if (device == Device::gpu) load.link_s[0] += costs.transfer_s(Tier::ddr, Tier::hbm, bytes);
}

/// A sublayer's weights, those that `rows` rows need.
void add_weights(const CostModel& costs, Sublayer sublayer, Device device, std::int64_t rows,
                 const LayerHomes& homes, UnitLoad& load) {
  const double y_bytes =
      sublayer_work(costs.model(), sublayer, BatchShape::decode(rows, 1)).y_bytes;
  double elements = 0;
  for (const WeightKind kind : weights_of(sublayer))
    elements += weight_elements(costs.model(), kind);
  UnitLoad tensor;
  double from_disk_bytes = 0;
  for (const WeightKind kind : weights_of(sublayer)) {
    const double bytes = y_bytes * weight_elements(costs.model(), kind) / elements;
    add_load(costs, homes[kind], device, bytes, tensor);
    if (homes[kind] == Tier::disk) from_disk_bytes += bytes;
  }
  if (from_disk_bytes > 0 && device == Device::gpu)
    tensor.behind_disk_s = costs.transfer_s(Tier::ddr, Tier::hbm, from_disk_bytes);
  load += tensor;
}

/// What attention reads of a part's cached KV, where that lives elsewhere. Keys and values lie in
/// one slab: one that passes DDR crosses the link when all of it has been read.
UnitLoad cached_kv(const CostModel& costs, const ChainPart& part, const Placement& placement,
                   Tier layers_home) {
  const Tier home = part.kv.value_or(layers_home);
  UnitLoad load;
  for (const Sublayer sublayer : {Sublayer::qk, Sublayer::sv}) {
    const double bytes = sublayer_work(costs.model(), sublayer, part.shape).y_bytes;
    add_load(costs, home, part.attention.value_or(placement[sublayer]), bytes, load);
  }
  if (home == Tier::disk) load.behind_disk_s = load.link_s[index(Device::gpu)];
  return load;
}

bool is_last(const MemoryPlan& memory, std::size_t layer) {
  return layer + 1 == memory.layers.size();
}

/// Of all chains: the KV of each, of the weights one copy for each device that multiplies with
/// them.
LayerLoads layer_loads(const CostModel& costs, std::span<const Chain> chains, std::size_t layer,
                       const MemoryPlan& memory) {
  const LayerHomes& homes = memory.layers[layer];
  LayerLoads loads;
  // KV comes first.
  for (const Chain& chain : chains) {
    for (const ChainPart& part : chain.parts) {
      if (part.shape.phase == Phase::decode)
        loads[0] += cached_kv(costs, part, chain.placements[layer], homes.kv);
    }
  }
  std::int64_t all = 0;
  std::int64_t drawing = 0;
  for (const Chain& chain : chains) {
    all += all_rows(chain.parts).total_rows();
    drawing += drawing_rows(chain.parts).total_rows();
  }
  for (const Device device : {Device::gpu, Device::cpu}) {
    for (const Sublayer sublayer : layer_sublayers) {
      const bool wanted = std::any_of(chains.begin(), chains.end(), [&](const Chain& chain) {
        return chain.placements[layer][sublayer] == device;
      });
      const std::size_t half = sublayer >= Sublayer::fc1 ? 1 : 0;
      const bool few = is_last(memory, layer) && sublayer >= Sublayer::out_proj;
      const std::int64_t rows = few ? drawing : all;
      if (wanted) add_weights(costs, sublayer, device, rows, homes, loads[half]);
    }
  }
  return loads;
}

/// Which rows a layer has from sublayer 4 on.
enum class RowsAfterAttention : std::uint8_t { all, drawing };

/// Adds one part's attention (and the way home of its new KV) to the layer.
void add_attention(const CostModel& costs, const ChainPart& part, const Placement& chains_own,
                   LayerHomes homes, RowsAfterAttention rows, ChainLayer& layer) {
  Placement placement = chains_own;
  if (part.attention) placement[Sublayer::qk] = placement[Sublayer::sv] = *part.attention;
  if (part.kv) homes.kv = *part.kv;
  const LayerCost cost = layer_cost(costs, placement, part.shape, homes);
  layer[0].store_s += cost.sublayers[0].store_s - cost.sublayers[0].write_s;
  layer[0].write_s += cost.sublayers[0].write_s;
  layer[0].store_to = reader_of(homes.kv).value_or(Device::cpu);
  for (std::size_t i = 1; i <= 2; ++i) {
    const SublayerCost& sublayer = cost.sublayers[i];
    const Sublayer which = layer_sublayers[i];
    if (placement[which] == chains_own[which]) {
      layer[i].values_s += sublayer.values_s;
      layer[i].compute_s += sublayer.compute_s;
    } else {
      layer[1].beside_values_s += sublayer.values_s;
      layer[1].beside_s += sublayer.compute_s;
    }
  }
  const bool narrows = rows == RowsAfterAttention::drawing && part.shape.rows > 1;
  layer[3].values_s +=
      narrows ? layer_cost(costs, placement, drawing_rows(part.shape), homes).sublayers[3].values_s
              : cost.sublayers[3].values_s;
}

ChainLayer make_layer(const CostModel& costs, const Chain& chain, std::size_t layer_index,
                      const MemoryPlan& memory) {
  const LayerHomes& homes = memory.layers[layer_index];
  const auto rows =
      is_last(memory, layer_index) ? RowsAfterAttention::drawing : RowsAfterAttention::all;
  ChainLayer layer;
  const Placement& placement = chain.placements[layer_index];
  const LayerCost before = layer_cost(costs, placement, all_rows(chain.parts), homes);
  const LayerCost after = rows == RowsAfterAttention::all
                              ? before
                              : layer_cost(costs, placement, drawing_rows(chain.parts), homes);
  for (std::size_t i = 0; i < sublayers_per_layer; ++i) {
    Step& step = layer[i];
    step.device = placement[layer_sublayers[i]];
    if (i == 1 || i == 2) continue;  // by part
    const SublayerCost& cost = (i < attention_joins ? before : after).sublayers[i];
    step.compute_s = cost.compute_s;
    if (i != attention_joins) step.values_s = cost.values_s;
  }
  for (const ChainPart& part : chain.parts)
    add_attention(costs, part, placement, homes, rows, layer);
  return layer;
}

/// Takes off what the task system does not take where layers of a chain are one task.
void join_layers(const CostModel& costs, const Chain& chain, const MemoryPlan& memory,
                 std::vector<ChainLayer>& layers) {
  if (chain.parts.size() > 1) return;
  const ChainPart& part = chain.parts.front();
  const auto form_of = [&](std::int64_t number) -> std::optional<LayerForm> {
    const auto layer = static_cast<std::size_t>(number);
    if (is_last(memory, layer) && part.shape.rows > 1) return std::nullopt;  // it drops rows
    const LayerHomes& homes = memory.layers[layer];
    Placement placement = chain.placements[layer];
    if (part.attention) placement[Sublayer::qk] = placement[Sublayer::sv] = *part.attention;
    return LayerForm{placement, reader_of_weights(homes), reader_of(part.kv.value_or(homes.kv))};
  };
  std::size_t next = 0;
  for (std::size_t first = 0; first < layers.size(); first = next) {
    const auto number = static_cast<std::int64_t>(first);
    const auto end = static_cast<std::int64_t>(layers.size());
    next = first +
           static_cast<std::size_t>(layers_of_task(number, end, part.shape.total_rows(), form_of));
    for (std::size_t layer = first + 1; layer < next; ++layer) {
      Step& step = layers[layer].front();
      constexpr int of_one = sublayers_per_layer;
      step.compute_s -= 2 * costs.task_overhead_s(step.device, of_one) -
                        costs.task_overhead_s(step.device, 2 * of_one);
    }
  }
}

/// One direction of the link to the GPU. Values go at once, one after the other; weights use what
/// they leave, in order.
class Link {
 public:
  /// When values that are there at `ready` can start.
  double first_start(double ready) const { return std::max(ready, values_free_); }

  /// When they have crossed.
  double move(double ready, double seconds) {
    const double start = first_start(ready);
    values_free_ = start + seconds;
    values_.push_back({0, start, values_free_});
    double free = 0;
    for (Use& load : loads_) {
      load.shift(std::max(free - load.start, 0.0));
      if (load.start <= start && load.end > start) {
        load.end += seconds;  // it stops meanwhile
      } else if (load.start > start && load.start < values_free_) {
        load.shift(values_free_ - load.start);
      }
      free = load.end;
    }
    return values_free_;
  }

  /// Weights that may cross from `allowed` on, after all that were asked for before.
  void load(std::size_t unit, double allowed, double seconds) {
    const double start = std::max(loads_.empty() ? 0 : loads_.back().end, allowed);
    while (!values_.empty() && values_.front().end <= start) values_.pop_front();
    double end = start;
    double left = seconds;
    for (const Use& values : values_) {
      const double until = std::max(values.start, end);
      if (until - end >= left) break;
      left -= until - end;
      end = values.end;
    }
    loads_.push_back({unit, start, end + left});
    if (loads_.size() > most_loads) loads_.pop_front();
  }

  /// When the unit's weights have crossed, as far as is known.
  double ready(std::size_t unit) const {
    for (const Use& load : loads_) {
      if (load.unit == unit) return load.end;
    }
    return 0;  // it loads nothing, or has long done so
  }

 private:
  struct Use {
    std::size_t unit;  ///< of weights
    double start;
    double end;

    void shift(double seconds) {
      start += seconds;
      end += seconds;
    }
  };
  /// Two units are under way at a time, two are computed on.
  static constexpr std::size_t most_loads = 4;

  std::deque<Use> values_;  ///< in order, those that coming weights may meet
  std::deque<Use> loads_;   ///< in order, the last ones
  double values_free_ = 0;
};

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
    layers_.resize(chains.size());
    for (std::size_t i = 0; i < num_layers_; ++i) {
      for (std::size_t c = 0; c < chains.size(); ++c)
        layers_[c].push_back(make_layer(costs, chains[c], i, memory));
      loads_.push_back(layer_loads(costs, chains, i, memory));
    }
    if (chains.size() == 1 && prefetch != Prefetch::half_layer)
      join_layers(costs, chains.front(), memory, layers_.front());
    const std::size_t units = num_layers_ * units_per_layer_ * iterations_;
    unit_done_.assign(units, 0);
    unit_passed_.assign(units, 0);
    for (std::size_t unit = 0; unit < std::min<std::size_t>(units, 2); ++unit) load(unit, 0);
  }

  /// The last iteration's time, and what was busy in a mean one.
  IterationEstimate run() {
    std::vector<Cursor> cursors(chains_.size());
    std::vector<double> iteration_end(iterations_ + 1, 0);
    for (std::size_t running = cursors.size(); running > 0;) {
      const std::size_t c = earliest(cursors);
      Cursor& cursor = cursors[c];
      last_chain_[index(device_of(c, cursor))] = c;
      if (!at_head(cursor)) {
        step(c, cursor);
        advance(c, cursor);
        continue;
      }
      head(c, cursor);
      cursor.layer = 0;
      ++cursor.iteration;
      iteration_end[cursor.iteration] = std::max(iteration_end[cursor.iteration], cursor.ready);
      if (cursor.iteration == iterations_) --running;
    }
    IterationEstimate result;
    result.busy = busy_ * (1.0 / static_cast<double>(iterations_));
    result.seconds =
        (iterations_ == 1 ? end_ : iteration_end[iterations_]) - iteration_end[iterations_ - 1];
    // Of a steady state two iterations may not show that something falls behind: it cannot for
    // ever.
    result.seconds = std::max(result.seconds, result.busy.busiest().second);
    return result;
  }

 private:
  struct Cursor {
    std::size_t iteration = 0;
    std::size_t layer = 0;
    std::size_t step = 0;
    double ready = 0;         ///< when its values are there
    double beside_ready = 0;  ///< when its attention on the other device is done
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

  bool at_head(const Cursor& cursor) const { return cursor.layer == num_layers_; }
  Device device_of(std::size_t c, const Cursor& cursor) const {
    return at_head(cursor) ? head_device() : layers_[c][cursor.layer][cursor.step].device;
  }

  /// When everything but the device is there for a step, values from the other device aside.
  double inputs_ready(const Cursor& cursor) const {
    if (at_head(cursor)) return cursor.ready;
    const double ready = std::max(cursor.ready, unit_ready(unit_of(cursor)));
    return cursor.step == attention_joins ? std::max(ready, cursor.beside_ready) : ready;
  }

  /// When a chain's next step can start; nothing if its weights cannot even be loaded.
  std::optional<double> start_of(std::size_t c, const Cursor& cursor) const {
    if (cursor.iteration == iterations_) return std::nullopt;
    const Device device = device_of(c, cursor);
    double ready = inputs_ready(cursor);
    if (!at_head(cursor)) {
      if (!may_load(unit_of(cursor))) return std::nullopt;
      const double values_s = layers_[c][cursor.layer][cursor.step].values_s;
      if (values_s > 0) ready = links_[index(device)].first_start(ready) + values_s;
    }
    return std::max(ready, device_free_[index(device)]);
  }

  /// The chain whose next step can start first. Of equals the one that the device has just worked
  /// for, then the lower layer, then the earlier chain.
  std::size_t earliest(const std::vector<Cursor>& cursors) const {
    std::size_t best = 0;
    auto best_rank = std::tuple(std::numeric_limits<double>::infinity(), true, std::size_t{0});
    for (std::size_t c = 0; c < cursors.size(); ++c) {
      const std::optional<double> start = start_of(c, cursors[c]);
      if (!start) continue;
      const std::size_t layer = cursors[c].iteration * num_layers_ + cursors[c].layer;
      const auto rank =
          std::tuple(*start, last_chain_[index(device_of(c, cursors[c]))] != c, layer);
      if (rank < best_rank) {
        best = c;
        best_rank = rank;
      }
    }
    return best;
  }

  double& link_busy(std::size_t device) {
    return static_cast<Device>(device) == Device::gpu ? busy_.to_gpu_s : busy_.to_cpu_s;
  }

  UnitLoad unit_load(std::size_t unit) const {
    const LayerLoads& loads = loads_[unit / units_per_layer_ % num_layers_];
    if (units_per_layer_ == 2) return loads[unit % 2];
    UnitLoad sum = loads[0];
    sum += loads[1];
    return sum;
  }

  /// Brings a unit's weights from `allowed` on, after those of the units before: with half layers,
  /// when these are there.
  void load(std::size_t unit, double allowed) {
    if (serial()) return;
    const UnitLoad load = unit_load(unit);
    if (prefetch_ == Prefetch::half_layer && unit > 0)
      allowed = std::max(allowed, unit_ready(unit - 1));
    for (std::size_t d = 0; d < links_.size(); ++d) {
      if (load.link_s[d] == 0) continue;
      links_[d].load(unit, allowed, load.link_s[d]);
      link_busy(d) += load.link_s[d];
    }
    if (load.disk_s == 0) return;
    disk_.load(unit, allowed, load.disk_s);
    busy_.disk_s += load.disk_s;
  }

  /// When the unit's weights are on the devices, as far as is known.
  double unit_ready(std::size_t unit) const {
    const double read = disk_.ready(unit);
    return std::max({links_[0].ready(unit), links_[1].ready(unit),
                     read > 0 ? read + unit_load(unit).behind_disk_s : 0});
  }

  /// Without look-ahead: a unit's weights one after the other, once it is its turn. What comes from
  /// a disk passes through DDR meanwhile.
  void load_now(std::size_t unit) {
    if (unit < next_load_) return;
    next_load_ = unit + 1;
    const UnitLoad load = unit_load(unit);
    end_ += std::max(load.disk_s + load.behind_disk_s, load.link_s[0] + load.link_s[1]);
    for (std::size_t d = 0; d < links_.size(); ++d) link_busy(d) += load.link_s[d];
    busy_.disk_s += load.disk_s;
  }

  /// Values that cross to a device's memory.
  double move(Device device, double ready, double seconds) {
    if (seconds == 0) return ready;
    if (serial()) ready = std::max(ready, end_);
    const double end = links_[index(device)].move(ready, seconds);
    link_busy(index(device)) += seconds;
    end_ = std::max(end_, end);
    return end;
  }

  double compute(Device device, double ready, double seconds) {
    if (serial()) ready = std::max(ready, end_);
    const double start = std::max(ready, device_free_[index(device)]);
    device_free_[index(device)] = start + seconds;
    (device == Device::gpu ? busy_.gpu_s : busy_.cpu_s) += seconds;
    end_ = std::max(end_, start + seconds);
    return start + seconds;
  }

  void step(std::size_t c, Cursor& cursor) {
    const Step& step = layers_[c][cursor.layer][cursor.step];
    if (serial()) load_now(unit_of(cursor));
    const double ready = inputs_ready(cursor);
    if (step.beside_s > 0) {
      const Device beside = step.device == Device::gpu ? Device::cpu : Device::gpu;
      cursor.beside_ready =
          compute(beside, move(beside, ready, step.beside_values_s), step.beside_s);
    }
    cursor.ready = compute(step.device, move(step.device, ready, step.values_s), step.compute_s);
    if (step.store_s + step.write_s > 0) {
      double stored = move(step.store_to, cursor.ready, step.store_s);
      if (step.write_s > 0) stored = compute(Device::cpu, stored, step.write_s);
      if (serial()) cursor.ready = stored;
    }
  }

  /// To the next step.
  void advance(std::size_t c, Cursor& cursor) {
    const std::size_t unit = unit_of(cursor);
    const bool half_ends = units_per_layer_ == 2 && cursor.step == 3;
    ++cursor.step;
    if (half_ends || cursor.step == sublayers_per_layer) pass(unit, cursor.ready);
    if (cursor.step < sublayers_per_layer) return;
    if (chains_[c].takes_turns) swap_hidden_states(c, cursor);
    cursor.step = 0;
    ++cursor.layer;
  }

  /// A chain is done with a unit.
  void pass(std::size_t unit, double when) {
    unit_done_[unit] = std::max(unit_done_[unit], when);
    if (++unit_passed_[unit] == chains_.size() && unit + 2 < unit_passed_.size())
      load(unit + 2, unit_done_[unit]);
  }

  /// A mini-batch's hidden states wait in DDR while others compute.
  void swap_hidden_states(std::size_t c, Cursor& cursor) {
    if (layers_[c][cursor.layer].back().device != Device::gpu) return;
    const auto hidden = static_cast<double>(costs_.model().hidden_size);
    double bytes = 0;
    for (const ChainPart& part : chains_[c].parts)
      bytes += 2 * static_cast<double>(part.shape.total_rows()) * hidden;
    const double out =
        move(Device::cpu, cursor.ready, costs_.transfer_s(Tier::hbm, Tier::ddr, bytes));
    cursor.ready = move(Device::gpu, out, costs_.transfer_s(Tier::ddr, Tier::hbm, bytes));
  }

  Device head_device() const {
    return memory_.lm_head_device.value_or(reader_of(memory_.lm_head).value_or(Device::cpu));
  }

  void head(std::size_t c, Cursor& cursor) {
    const Device device = head_device();
    if (reader_of(memory_.lm_head) != device) {
      const ModelDimensions& model = costs_.model();
      const double bytes =
          model.table_bytes(static_cast<double>(model.vocab_size * model.embed_size));
      cursor.ready =
          move(device, cursor.ready, costs_.transfer_s(memory_.lm_head, own_tier(device), bytes));
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
  std::vector<LayerLoads> loads_;                ///< by layer
  std::vector<double> unit_done_;
  std::vector<std::size_t> unit_passed_;  ///< chains that are done with it
  std::size_t next_load_ = 0;             ///< without look-ahead
  std::array<double, 2> device_free_{};
  std::array<std::size_t, 2> last_chain_{};  ///< by device
  std::array<Link, 2> links_;                ///< by the device that they go to
  Link disk_;
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
