#include "perfmodels/timeline.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <tuple>

#include "perfmodels/chain_work.h"
#include "perfmodels/footprint.h"

namespace sluice {

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

/// Of sums of bytes.
constexpr double rounding = 1e-9;

/// One direction of a link. Tensors of weights cross in order; values go behind the one that
/// crosses, before all others.
class Link {
 public:
  /// When values that are there at `ready` can start.
  double first_start(double ready) const {
    const double start = std::max(ready, values_free_);
    const auto crossing = std::find_if(tensors_.begin(), tensors_.end(),
                                       [&](const Use& tensor) { return tensor.end > start; });
    return crossing != tensors_.end() && crossing->start < start ? crossing->end : start;
  }

  /// When they have crossed.
  double move(double ready, double seconds) {
    const double start = first_start(ready);
    values_free_ = start + seconds;
    values_.push_back({0, start, values_free_});
    double free = values_free_;
    for (Use& tensor : tensors_) {
      if (tensor.end <= start) continue;
      tensor.shift(std::max(free - tensor.start, 0.0));
      free = tensor.end;
    }
    return values_free_;
  }

  /// Weights that may cross from `allowed` on, after all that were asked for before.
  void load(std::size_t unit, double allowed, std::span<const double> tensors_s) {
    for (const double seconds : tensors_s) {
      const double start = std::max(tensors_.empty() ? 0 : tensors_.back().end, allowed);
      while (!values_.empty() && values_.front().end <= start) values_.pop_front();
      double end = start;
      double left = seconds;
      for (const Use& values : values_) {
        const double until = std::max(values.start, end);
        if (until - end >= left) break;
        left -= until - end;
        end = values.end;
      }
      tensors_.push_back({unit, start, end + left});
    }
  }

  /// All chains are done with it.
  void forget(std::size_t unit) {
    while (!tensors_.empty() && tensors_.front().unit <= unit && tensors_.size() > 1)
      tensors_.pop_front();
  }

  /// When the unit's weights have crossed, as far as is known.
  double ready(std::size_t unit) const {
    double end = 0;  // it loads nothing, or has long done so
    for (const Use& tensor : tensors_) {
      if (tensor.unit == unit) end = tensor.end;
    }
    return end;
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
  std::deque<Use> values_;   ///< in order, those that coming weights may meet
  std::deque<Use> tensors_;  ///< in order, of units that some chain is not done with
  double values_free_ = 0;
};

/// Everything that happens, in time.
class Simulation {
 public:
  Simulation(const CostModel& costs, const MemoryPlan& memory, std::span<const Chain> chains,
             Prefetch prefetch, Start start)
      : costs_(costs),
        chains_(chains),
        prefetch_(prefetch),
        units_per_layer_(prefetch == Prefetch::half_layer ? 2 : 1),
        num_layers_(memory.layers.size()),
        iterations_(start == Start::cold ? 1 : 2) {
    layers_.resize(chains.size());
    for (std::size_t i = 0; i < num_layers_; ++i) {
      const bool same = is_like_before(memory, i);
      for (std::size_t c = 0; c < chains.size(); ++c) {
        std::vector<ChainLayer>& layers = layers_[c];
        layers.push_back(same ? layers.back() : make_chain_layer(costs, chains[c], i, memory));
      }
      if (same) {
        for (std::size_t unit = 0; unit < units_per_layer_; ++unit)
          loads_.push_back(loads_[loads_.size() - units_per_layer_]);
      } else {
        LayerLoads halves = make_layer_loads(costs, chains, i, memory);
        if (units_per_layer_ == 1) halves[0] += halves[1];
        for (std::size_t unit = 0; unit < units_per_layer_; ++unit) loads_.push_back(halves[unit]);
      }
    }
    for (const Chain& chain : chains) heads_.push_back(make_head(costs, chain, memory));
    for (const Chain& chain : chains) {
      for (const ChainPart& part : chain.parts)
        attends_elsewhere_ = attends_elsewhere_ || part.attention.has_value();
    }
    head_there_s_.assign(iterations_, 0);
    token_s_.resize(chains.size());
    if (chains.size() == 1 && prefetch != Prefetch::half_layer)
      join_layers(costs, chains.front(), memory, layers_.front());
    const std::size_t units = num_layers_ * units_per_layer_ * iterations_;
    unit_done_.assign(units, 0);
    unit_passed_.assign(units, 0);
    order_loads(units, (1 + rounding) * staging_bytes(costs.model(), memory, prefetch));
    load_next(0);
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
      if (++cursor.iteration == iterations_) token_s_[c] = cursor.ready;
      iteration_end[cursor.iteration] = std::max(iteration_end[cursor.iteration], cursor.ready);
      if (cursor.iteration == iterations_) --running;
    }
    IterationEstimate result;
    result.busy = busy_ * (1.0 / static_cast<double>(iterations_));
    const double end = iterations_ == 1 ? end_ : iteration_end[iterations_];
    result.seconds = end - iteration_end[iterations_ - 1];
    result.rest_s = *std::max_element(token_s_.begin(), token_s_.end()) - mean_token_s();
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
    double beside_ready = 0;  ///< when what runs beside it on the other device is done
  };

  /// Whether a layer takes what the one before it does. The last one never does: it drops rows.
  bool is_like_before(const MemoryPlan& memory, std::size_t layer) const {
    if (layer == 0 || layer + 1 == num_layers_) return false;
    if (memory.layers[layer] != memory.layers[layer - 1]) return false;
    return std::all_of(chains_.begin(), chains_.end(), [&](const Chain& chain) {
      return chain.placements[layer] == chain.placements[layer - 1];
    });
  }

  /// Which units' weights take whose place, in a window of `window_bytes` for those on the GPU. KV
  /// and what comes from a disk have two places, as all units do with half layers.
  void order_loads(std::size_t units, double window_bytes) {
    place_of_.assign(units, std::nullopt);
    std::deque<std::size_t> inside;
    double inside_bytes = 0;
    std::deque<std::size_t> places;
    std::optional<std::size_t> last;  // units load in order
    for (std::size_t unit = 0; unit < units; ++unit) {
      const UnitLoad& load = unit_load(unit);
      const bool two_places = prefetch_ == Prefetch::half_layer || load.has_kv || load.disk_s > 0;
      if (!two_places && load.is_nothing()) continue;
      const auto leaves = [&](std::size_t other) { last = std::max(last.value_or(0), other); };
      while (!inside.empty() && inside_bytes + load.weight_bytes > window_bytes) {
        leaves(inside.front());
        inside_bytes -= unit_load(inside.front()).weight_bytes;
        inside.pop_front();
      }
      inside.push_back(unit);
      inside_bytes += load.weight_bytes;
      if (two_places) {
        if (places.size() == 2) {
          leaves(places.front());
          places.pop_front();
        }
        places.push_back(unit);
      }
      place_of_[unit] = last;
    }
  }

  bool serial() const { return prefetch_ == Prefetch::none; }
  std::size_t unit_of(const Cursor& cursor) const {
    const std::size_t layer = cursor.iteration * num_layers_ + cursor.layer;
    return layer * units_per_layer_ + (units_per_layer_ == 2 && cursor.step >= 4 ? 1 : 0);
  }

  /// Weights take the place of others when all chains are done with these.
  bool may_load(std::size_t unit) const {
    return !place_of_[unit] || unit_passed_[*place_of_[unit]] == chains_.size();
  }

  /// All units that may, of those that have not been.
  void load_next(double allowed) {
    if (serial()) return;
    for (; next_load_ < place_of_.size() && may_load(next_load_); ++next_load_)
      load(next_load_, allowed);
  }

  bool at_head(const Cursor& cursor) const { return cursor.layer == num_layers_; }
  Device device_of(std::size_t c, const Cursor& cursor) const {
    return at_head(cursor) ? heads_[c].device : layers_[c][cursor.layer][cursor.step].device;
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

  /// The chain whose next step can start first. Of equals the one whose task goes on, then, as the
  /// shared scheduler has it, the lower layer, the earlier sublayer, the earlier chain.
  std::size_t earliest(const std::vector<Cursor>& cursors) const {
    std::size_t best = 0;
    auto best_rank =
        std::tuple(std::numeric_limits<double>::infinity(), true, std::size_t{0}, std::size_t{0});
    for (std::size_t c = 0; c < cursors.size(); ++c) {
      const Cursor& cursor = cursors[c];
      const std::optional<double> start = start_of(c, cursor);
      if (!start) continue;
      const auto rank = std::tuple(*start, !goes_on(c, cursor),
                                   cursor.iteration * num_layers_ + cursor.layer, cursor.step);
      if (rank < best_rank) {
        best = c;
        best_rank = rank;
      }
    }
    return best;
  }

  /// Whether a chain's next step is of the same task as the one before, or, beside requests that
  /// attend elsewhere (NEO), of the chain that the device has just worked for.
  bool goes_on(std::size_t c, const Cursor& cursor) const {
    const Device device = device_of(c, cursor);
    if (attends_elsewhere_) return last_chain_[index(device)] == c;
    return !at_head(cursor) && cursor.step > 0 &&
           layers_[c][cursor.layer][cursor.step - 1].device == device;
  }

  double& link_busy(std::size_t device) {
    return static_cast<Device>(device) == Device::gpu ? busy_.to_gpu_s : busy_.to_cpu_s;
  }

  const UnitLoad& unit_load(std::size_t unit) const {
    return loads_[unit % (num_layers_ * units_per_layer_)];
  }

  /// Brings a unit's weights from `allowed` on, after those of the units before: with half layers,
  /// when these are there.
  void load(std::size_t unit, double allowed) {
    const UnitLoad& load = unit_load(unit);
    if (prefetch_ == Prefetch::half_layer && unit > 0)
      allowed = std::max(allowed, unit_ready(unit - 1));
    for (std::size_t d = 0; d < links_.size(); ++d) {
      if (load.link_s[d] == 0) continue;
      links_[d].load(unit, allowed, load.tensors_s[d]);
      link_busy(d) += load.link_s[d];
    }
    if (load.disk_s == 0) return;
    disk_.load(unit, allowed, {&load.disk_s, 1});
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
    const UnitLoad& load = unit_load(unit);
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
    const ChainStep& step = layers_[c][cursor.layer][cursor.step];
    if (serial()) load_now(unit_of(cursor));
    const double ready = inputs_ready(cursor);
    if (step.beside_s > 0) {
      const Device beside = step.device == Device::gpu ? Device::cpu : Device::gpu;
      cursor.beside_ready =
          compute(beside, move(beside, ready, step.beside_values_s), step.beside_s);
      cursor.beside_ready = move(step.device, cursor.beside_ready, step.beside_back_s);
    }
    if (cursor.step == attention_joins) store_kv(step, ready);
    cursor.ready = compute(step.device, move(step.device, ready, step.values_s), step.compute_s);
    double stored = cursor.ready;
    if (step.store_s > 0) stored = move(step.store_to, stored, step.store_s);
    if (step.write_s > 0) stored = compute(Device::cpu, stored, step.write_s);
    if (serial()) cursor.ready = stored;
    // Hot experts' sum is added to the others'.
    if (cursor.step + 1 == sublayers_per_layer)
      cursor.ready = std::max(cursor.ready, cursor.beside_ready);
    if (cursor.step == 0) store_kv(step, stored);
  }

  /// The tasks that store new KV; nothing of the chain waits for them but the devices.
  void store_kv(const ChainStep& step, double ready) {
    for (const Device device : {Device::gpu, Device::cpu}) {
      const double seconds = step.kv_store_s[index(device)];
      if (seconds > 0) compute(device, ready, seconds);
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
    if (++unit_passed_[unit] < chains_.size()) return;
    for (Link& link : links_) link.forget(unit);
    disk_.forget(unit);
    load_next(unit_done_[unit]);
  }

  /// A mini-batch's hidden states wait in DDR while others compute.
  void swap_hidden_states(std::size_t c, Cursor& cursor) {
    if (layers_[c][cursor.layer].back().device != Device::gpu) return;
    const double out =
        move(Device::cpu, cursor.ready, hidden_states_s(costs_, chains_[c], Device::cpu));
    cursor.ready = move(Device::gpu, out, hidden_states_s(costs_, chains_[c], Device::gpu));
  }

  /// When a sequence has the last iteration's token, the mean of all.
  double mean_token_s() const {
    double sum_s = 0;
    double sequences = 0;
    for (std::size_t c = 0; c < chains_.size(); ++c) {
      for (const ChainPart& part : chains_[c].parts) {
        sum_s += token_s_[c] * static_cast<double>(part.shape.batch);
        sequences += static_cast<double>(part.shape.batch);
      }
    }
    return sum_s / sequences;
  }

  void head(std::size_t c, Cursor& cursor) {
    const HeadStep& head = heads_[c];
    // The first chain that has come here brings the weight for all.
    double& there_s = head_there_s_[cursor.iteration];
    if (there_s == 0) there_s = move(head.device, cursor.ready, head.load_s);
    cursor.ready = compute(head.device, std::max(cursor.ready, there_s), head.compute_s);
  }

  const CostModel& costs_;
  std::span<const Chain> chains_;
  Prefetch prefetch_;
  std::size_t units_per_layer_;
  std::size_t num_layers_;
  std::size_t iterations_;
  std::vector<std::vector<ChainLayer>> layers_;  ///< by chain, then layer
  std::vector<UnitLoad> loads_;                  ///< by unit of one iteration
  std::vector<HeadStep> heads_;                  ///< by chain
  std::vector<double> head_there_s_;             ///< by iteration: when its weight has come
  bool attends_elsewhere_ = false;  ///< some requests, than their chain's placement says
  std::vector<double> token_s_;     ///< by chain, in the last iteration
  std::vector<std::optional<std::size_t>> place_of_;  ///< by unit: whose place its weights take
  std::vector<double> unit_done_;
  std::vector<std::size_t> unit_passed_;  ///< chains that are done with it
  std::size_t next_load_ = 0;
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
  return Simulation(costs, memory, chains, prefetch, start).run();
}

}  // namespace sluice
