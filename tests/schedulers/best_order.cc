#include "tests/schedulers/best_order.h"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace sluice::test {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
/// Shorter by less than this is not shorter.
constexpr double rounding = 1e-9;
constexpr std::size_t num_resources = 4;
constexpr std::size_t none = static_cast<std::size_t>(-1);

/// Things that one part of the machine chooses from: tracks, a load, stores.
constexpr std::size_t most_items = 16;

std::size_t link_to(Device device) { return 2 + index(device); }
bool is_link(std::size_t resource) { return resource >= 2; }
Device other(Device device) { return device == Device::gpu ? Device::cpu : Device::gpu; }

/// A task or a transfer of a chain.
struct Operation {
  std::size_t resource = 0;  ///< GPU, CPU, link to GPU, link to CPU
  double seconds = 0;
  std::size_t unit = none;   ///< whose weights it waits for
  std::size_t joins = none;  ///< what must have come so far in the other track before
  std::size_t forks = none;  ///< the other track may go on as far as there once this is done
  double store_s = 0;        ///< then leaves over link `store_link`; nothing waits for it
  std::size_t store_link = 0;
  std::size_t passes = none;  ///< the unit that the chain is done with afterwards

  bool operator==(const Operation&) const = default;
};

/// Operations one after the other. A chain has two: its own, and attention beside it.
struct Track {
  std::vector<Operation> operations;
  std::vector<std::size_t> unit;  ///< that an operation counts to: of the last task up to it
  /// What is left from operation i on: by resource; before the next unit's first task.
  std::vector<std::array<double, num_resources>> left;
  std::vector<double> left_of_unit;
};

struct Graph {
  std::vector<Track> tracks;  ///< 2c: chain c; 2c + 1: beside it
  std::size_t num_units = 0;
  std::vector<std::array<double, 2>> loads;  ///< by unit, then the device that they go to
  /// By chain, then unit: seconds of its own track from the unit's first task to the next unit's,
  /// and those of them after its last task.
  std::vector<std::vector<double>> unit_total;
  std::vector<std::vector<double>> after_unit;
  std::vector<char> is_twin;  ///< by chain: it is like the one before
  std::size_t num_chains() const { return tracks.size() / 2; }
};

class GraphMaker {
 public:
  explicit GraphMaker(const IterationWork& work) : work_(work) {
    const std::size_t per_layer = work.half_layers ? 2 : 1;
    graph_.num_units = work.loads.size() * per_layer;
    for (const LayerLoads& loads : work.loads) {
      if (loads[0].disk_s + loads[1].disk_s > 0) throw std::runtime_error("weights on a disk");
      if (work.half_layers) {
        graph_.loads.push_back(loads[0].link_s);
        graph_.loads.push_back(loads[1].link_s);
      } else {
        graph_.loads.push_back(
            {loads[0].link_s[0] + loads[1].link_s[0], loads[0].link_s[1] + loads[1].link_s[1]});
      }
    }
  }

  Graph make() {
    if (2 * work_.layers.size() + 2 > most_items) throw std::runtime_error("too many chains");
    for (std::size_t c = 0; c < work_.layers.size(); ++c) add_chain(c);
    return std::move(graph_);
  }

 private:
  void add_chain(std::size_t c) {
    Track own;
    Track beside;
    for (std::size_t layer = 0; layer < work_.layers[c].size(); ++layer)
      add_layer(c, layer, own, beside);
    const HeadStep& head = work_.heads[c];
    if (head.load_s > 0)
      own.operations.push_back({.resource = link_to(head.device), .seconds = head.load_s});
    own.operations.push_back({.resource = index(head.device), .seconds = head.compute_s});
    sum_up(own);
    count_units(own);
    sum_up(beside);
    graph_.is_twin.push_back(c > 0 && own.operations == graph_.tracks[2 * c - 2].operations &&
                             beside.operations == graph_.tracks[2 * c - 1].operations);
    graph_.tracks.push_back(std::move(own));
    graph_.tracks.push_back(std::move(beside));
  }

  void add_layer(std::size_t c, std::size_t layer, Track& own, Track& beside) {
    const ChainLayer& steps = work_.layers[c][layer];
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const ChainStep& step = steps[i];
      if (step.write_s > 0) throw std::runtime_error("KV on a disk");
      const std::size_t unit = work_.half_layers ? 2 * layer + (i >= 4 ? 1 : 0) : layer;
      std::vector<Operation>& to = own.operations;
      if (step.beside_s > 0) {
        if (to.empty()) throw std::runtime_error("attention comes after another sublayer");
        if (step.beside_values_s > 0) {
          beside.operations.push_back(
              {.resource = link_to(other(step.device)), .seconds = step.beside_values_s});
        }
        beside.operations.push_back(
            {.resource = index(other(step.device)), .seconds = step.beside_s, .unit = unit});
        to.back().forks = beside.operations.size();
      }
      if (step.values_s > 0)
        to.push_back({.resource = link_to(step.device), .seconds = step.values_s});
      to.push_back({.resource = index(step.device), .seconds = step.compute_s, .unit = unit});
      if (i == attention_joins) to.back().joins = beside.operations.size();
      if (step.store_s > 0) {
        to.back().store_s = step.store_s;
        to.back().store_link = link_to(step.store_to);
      }
      if (i + 1 == steps.size() || (work_.half_layers && i == 3)) to.back().passes = unit;
    }
    const IterationWork::Swap& swap = work_.swaps[c];
    if (steps.back().device == Device::gpu && swap.out_s > 0) {
      own.operations.push_back({.resource = link_to(Device::cpu), .seconds = swap.out_s});
      own.operations.push_back({.resource = link_to(Device::gpu), .seconds = swap.back_s});
    }
  }

  void count_units(const Track& own) {
    std::vector<double>& total = graph_.unit_total.emplace_back(graph_.num_units, 0.0);
    std::vector<double>& after = graph_.after_unit.emplace_back(graph_.num_units, 0.0);
    for (std::size_t i = 0; i < own.operations.size(); ++i) {
      const std::size_t unit = own.unit[i];
      total[unit] += own.operations[i].seconds;
      after[unit] = own.operations[i].passes == unit ? 0 : after[unit] + own.operations[i].seconds;
    }
  }

  static void sum_up(Track& track) {
    std::size_t unit = 0;
    for (const Operation& operation : track.operations) {
      if (operation.unit != none) unit = operation.unit;
      track.unit.push_back(unit);
    }
    const std::size_t count = track.operations.size();
    track.left.assign(count + 1, {});
    track.left_of_unit.assign(count + 1, 0);
    for (std::size_t i = count; i-- > 0;) {
      const Operation& operation = track.operations[i];
      track.left[i] = track.left[i + 1];
      track.left[i][operation.resource] += operation.seconds;
      if (operation.store_s > 0) track.left[i][operation.store_link] += operation.store_s;
      const bool unit_begins = i + 1 < count && track.unit[i] != track.unit[i + 1];
      track.left_of_unit[i] = operation.seconds + (unit_begins ? 0 : track.left_of_unit[i + 1]);
    }
  }

  const IterationWork& work_;
  Graph graph_;
};

/// Everything at one moment.
struct State {
  double now = 0;
  std::vector<std::size_t> next;  ///< by track: its operation that is not done
  std::vector<double> left;       ///< of that one
  std::vector<char> running;      ///< a task that has begun
  std::vector<std::size_t> open;  ///< of a track beside: so many operations may run
  std::array<std::size_t, 2> load_unit{};
  std::array<double, 2> load_left{};
  std::array<double, 2> stores_left{};
  std::vector<std::size_t> passed;  ///< by unit, chains that are done with it
  std::array<std::size_t, num_resources> chosen{none, none, none, none};
  std::array<std::uint32_t, 2> refused{};  ///< by device: tracks that it waits instead of running
  std::array<std::uint32_t, 2> known{};    ///< by link: what it has chosen from
};

class Search {
 public:
  Search(Graph graph, double below, Pruning pruning)
      : graph_(std::move(graph)), best_(below), pruning_(pruning) {}

  double bound() { return bound_of(first()); }

  double run() {
    const double below = best_;
    State state = first();
    descend(state);
    return best_ < below ? best_ : never;
  }

 private:
  /// Beyond the tracks: a load, stores.
  std::size_t load_item() const { return graph_.tracks.size(); }
  std::size_t store_item() const { return graph_.tracks.size() + 1; }

  State first() {
    State state;
    const std::size_t tracks = graph_.tracks.size();
    state.next.assign(tracks, 0);
    state.left.assign(tracks, 0);
    state.running.assign(tracks, 0);
    state.open.assign(tracks, 0);
    state.passed.assign(graph_.num_units, 0);
    for (std::size_t k = 0; k < tracks; ++k) {
      if (!graph_.tracks[k].operations.empty())
        state.left[k] = graph_.tracks[k].operations.front().seconds;
    }
    for (std::size_t d = 0; d < 2; ++d) {
      if (graph_.num_units > 0) state.load_left[d] = graph_.loads[0][d];
      skip_empty_loads(state, d);
    }
    return state;
  }

  void skip_empty_loads(State& state, std::size_t d) const {
    while (state.load_unit[d] < graph_.num_units && state.load_left[d] <= 0) {
      if (++state.load_unit[d] < graph_.num_units)
        state.load_left[d] = graph_.loads[state.load_unit[d]][d];
    }
  }

  const Operation* operation(const State& state, std::size_t track) const {
    const std::vector<Operation>& all = graph_.tracks[track].operations;
    return state.next[track] < all.size() ? &all[state.next[track]] : nullptr;
  }

  bool loaded(const State& state, std::size_t unit) const {
    return state.load_unit[0] > unit && state.load_unit[1] > unit;
  }

  bool can_run(const State& state, std::size_t track) const {
    const Operation* op = operation(state, track);
    if (op == nullptr) return false;
    if (track % 2 == 1 && state.next[track] >= state.open[track]) return false;
    if (op->unit != none && !loaded(state, op->unit)) return false;
    return op->joins == none || state.next[track + 1] >= op->joins;
  }

  bool may_load(const State& state, std::size_t d) const {
    const std::size_t unit = state.load_unit[d];
    if (unit >= graph_.num_units) return false;
    return unit < 2 || state.passed[unit - 2] == graph_.num_chains();
  }

  void finish_operation(State& state, std::size_t track) const {
    const Operation& op = *operation(state, track);
    if (op.store_s > 0) state.stores_left[op.store_link - 2] += op.store_s;
    if (op.passes != none) ++state.passed[op.passes];
    if (op.forks != none) state.open[track + 1] = op.forks;
    state.running[track] = 0;
    ++state.next[track];
    if (const Operation* following = operation(state, track))
      state.left[track] = following->seconds;
  }

  /// Not later than any end from here.
  double bound_of(const State& state) const {
    std::array<double, num_resources> work{};
    for (std::size_t k = 0; k < graph_.tracks.size(); ++k) {
      const Track& track = graph_.tracks[k];
      const std::size_t i = state.next[k];
      for (std::size_t r = 0; r < num_resources; ++r) work[r] += track.left[i][r];
      if (i < track.operations.size()) {
        const Operation& op = track.operations[i];
        work[op.resource] += state.left[k] - op.seconds;
      }
    }
    for (std::size_t d = 0; d < 2; ++d) {
      work[2 + d] += state.stores_left[d];
      if (state.load_unit[d] < graph_.num_units) work[2 + d] += state.load_left[d];
      for (std::size_t u = state.load_unit[d] + 1; u < graph_.num_units; ++u)
        work[2 + d] += graph_.loads[u][d];
    }
    return std::max(state.now + *std::max_element(work.begin(), work.end()), chains_end(state));
  }

  /// As if every chain had the machine for itself, behind the loads.
  double chains_end(const State& state) const {
    std::array<double, 2> link = {state.now, state.now};
    std::vector<double>& at = chain_at_;
    at.assign(graph_.num_chains(), state.now);
    std::vector<double>& unit_end = unit_end_;
    unit_end.assign(graph_.num_units, state.now);
    for (std::size_t u = 0; u < graph_.num_units; ++u) {
      double ready = state.now;
      for (std::size_t d = 0; d < 2; ++d) {
        if (state.load_unit[d] > u) continue;
        const double seconds = state.load_unit[d] == u ? state.load_left[d] : graph_.loads[u][d];
        if (u >= 2) link[d] = std::max(link[d], unit_end[u - 2]);
        link[d] += seconds;
        ready = std::max(ready, link[d]);
      }
      for (std::size_t c = 0; c < graph_.num_chains(); ++c) {
        const Track& track = graph_.tracks[2 * c];
        const std::size_t i = state.next[2 * c];
        if (i >= track.operations.size()) continue;
        const std::size_t here = track.unit[i];
        if (u < here) continue;
        if (u == here) {
          const double left =
              track.left_of_unit[i] + state.left[2 * c] - track.operations[i].seconds;
          // Values may come before the weights.
          at[c] = left + std::max(at[c], ready - values_first(track, i, state.left[2 * c]));
        } else {
          at[c] = graph_.unit_total[c][u] + std::max(at[c], ready);
        }
        unit_end[u] = std::max(unit_end[u], at[c] - graph_.after_unit[c][u]);
      }
    }
    double end = state.now;
    for (const double each : at) end = std::max(end, each);
    return end;
  }

  /// Seconds of transfers from operation i on that come before the next task.
  static double values_first(const Track& track, std::size_t i, double left) {
    double seconds = 0;
    for (std::size_t k = i; k < track.operations.size(); ++k) {
      if (!is_link(track.operations[k].resource)) break;
      seconds += k == i ? left : track.operations[k].seconds;
    }
    return seconds;
  }

  struct Choice {
    std::array<std::array<std::size_t, most_items>, num_resources> items{};
    std::array<std::size_t, num_resources> count{};
    void add(std::size_t resource, std::size_t item) { items[resource][count[resource]++] = item; }
  };

  /// What each free part of the machine can do now; those that go on have one choice.
  Choice choices(State& state) const {
    Choice choice;
    std::array<std::uint32_t, num_resources> can{};
    for (std::size_t k = 0; k < graph_.tracks.size(); ++k) {
      if (can_run(state, k) && !follows_twin(state, k))
        can[operation(state, k)->resource] |= 1U << k;
    }
    for (std::size_t d = 0; d < 2; ++d) {
      if (state.chosen[d] != none) {
        choice.add(d, state.chosen[d]);
      } else {
        for (std::size_t k = 0; k < graph_.tracks.size(); ++k) {
          if ((can[d] & ~state.refused[d]) >> k & 1U) choice.add(d, k);
        }
        if (may_wait(state, d, can[d])) choice.add(d, none);
        if (choice.count[d] == 0) choice.add(d, none);
      }
      link_choices(state, d, can[2 + d], choice);
    }
    return choice;
  }

  /// Of chains that are alike and equally far the first one goes first.
  bool follows_twin(const State& state, std::size_t track) const {
    const std::size_t c = track / 2;
    if (pruning_ == Pruning::off || c == 0 || !graph_.is_twin[c]) return false;
    for (std::size_t k = 2 * c; k < 2 * c + 2; ++k) {
      if (state.next[k] != state.next[k - 2] || state.left[k] != state.left[k - 2] ||
          state.running[k] != state.running[k - 2])
        return false;
    }
    return state.running[track] == 0;
  }

  void link_choices(State& state, std::size_t d, std::uint32_t can, Choice& choice) const {
    const std::size_t link = 2 + d;
    if (may_load(state, d)) can |= 1U << load_item();
    const std::size_t before = state.chosen[link];
    const bool same = before != none && before != store_item() && (can >> before & 1U) &&
                      (can & ~state.known[d]) == 0;
    state.known[d] = can;
    if (same) {
      choice.add(link, before);
      return;
    }
    for (std::size_t k = 0; k <= load_item(); ++k) {
      if (can >> k & 1U) choice.add(link, k);
    }
    // Nothing waits for stores: they take what is left.
    if (choice.count[link] == 0 && state.stores_left[d] > 0) choice.add(link, store_item());
    if (choice.count[link] == 0) choice.add(link, none);
  }

  /// Waiting pays only if something else comes that this device shall run first.
  bool may_wait(const State& state, std::size_t d, std::uint32_t can) const {
    if (can == 0) return false;
    for (std::size_t k = 0; k < graph_.tracks.size(); ++k) {
      if (can >> k & 1U) continue;
      if (graph_.tracks[k].left[state.next[k]][d] > 0) return true;
    }
    return false;
  }

  void descend(State& state) {
    if (--nodes_left_ < 0) throw std::runtime_error("too many orders to search");
    if (done(state)) {
      best_ = std::min(best_, state.now);
      return;
    }
    if (pruning_ == Pruning::on && bound_of(state) >= best_ * (1 - rounding)) return;
    const Choice choice = choices(state);
    std::array<std::size_t, num_resources> digits{};
    for (bool more = true; more;) {
      State following = state;
      if (start(choice, digits, following)) {
        advance(following);
        descend(following);
      }
      more = false;
      for (std::size_t r = 0; r < num_resources && !more; ++r) {
        more = ++digits[r] < choice.count[r];
        if (!more) digits[r] = 0;
      }
    }
  }

  bool done(const State& state) const {
    for (std::size_t k = 0; k < graph_.tracks.size(); ++k) {
      if (operation(state, k) != nullptr) return false;
    }
    return state.stores_left[0] <= 0 && state.stores_left[1] <= 0;
  }

  /// False where nothing runs.
  bool start(const Choice& choice, const std::array<std::size_t, num_resources>& digits,
             State& state) const {
    bool any = false;
    for (std::size_t r = 0; r < num_resources; ++r) {
      const std::size_t item = choice.items[r][digits[r]];
      any = any || item != none;
      if (!is_link(r)) {
        if (item == none) {
          for (std::size_t i = 0; i < choice.count[r]; ++i) {
            if (choice.items[r][i] != none) state.refused[r] |= 1U << choice.items[r][i];
          }
        } else {
          state.refused[r] = 0;
          state.running[item] = 1;
        }
      }
      state.chosen[r] = item;
    }
    return any;
  }

  double left_of(const State& state, std::size_t resource, std::size_t item) const {
    if (item == load_item()) return state.load_left[resource - 2];
    if (item == store_item()) return state.stores_left[resource - 2];
    return state.left[item];
  }

  /// To the moment when the next thing is done.
  void advance(State& state) const {
    double least = never;
    for (std::size_t r = 0; r < num_resources; ++r) {
      if (state.chosen[r] != none) least = std::min(least, left_of(state, r, state.chosen[r]));
    }
    state.now += least;
    const double done_at = rounding * state.now + 1e-15;
    std::array<std::size_t, num_resources> finished{none, none, none, none};
    for (std::size_t r = 0; r < num_resources; ++r) {
      const std::size_t item = state.chosen[r];
      if (item == none) continue;
      const double left = std::max(left_of(state, r, item) - least, 0.0);
      const bool ends = left <= done_at;
      if (item == load_item()) {
        state.load_left[r - 2] = ends ? 0 : left;
      } else if (item == store_item()) {
        state.stores_left[r - 2] = ends ? 0 : left;
      } else {
        state.left[item] = left;
      }
      if (ends) finished[r] = item;
    }
    for (std::size_t r = 0; r < num_resources; ++r) {
      const std::size_t item = finished[r];
      if (item == none) continue;
      state.chosen[r] = none;
      if (item == load_item()) {
        skip_empty_loads(state, r - 2);
      } else if (item != store_item()) {
        finish_operation(state, item);
      }
    }
  }

  Graph graph_;
  double best_;
  Pruning pruning_;
  std::int64_t nodes_left_ = 50'000'000;
  mutable std::vector<double> chain_at_;
  mutable std::vector<double> unit_end_;
};

}  // namespace

IterationWork work_of(const CostModel& costs, const MemoryPlan& memory,
                      std::span<const Chain> chains, Prefetch prefetch) {
  IterationWork work;
  work.half_layers = prefetch == Prefetch::half_layer;
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer)
    work.loads.push_back(make_layer_loads(costs, chains, layer, memory));
  for (const Chain& chain : chains) {
    std::vector<ChainLayer>& layers = work.layers.emplace_back();
    for (std::size_t layer = 0; layer < memory.layers.size(); ++layer)
      layers.push_back(make_chain_layer(costs, chain, layer, memory));
    work.heads.push_back(make_head(costs, chain, memory));
    work.swaps.emplace_back();
    if (chain.takes_turns) {
      work.swaps.back() = {hidden_states_s(costs, chain, Device::cpu),
                           hidden_states_s(costs, chain, Device::gpu)};
    }
  }
  if (chains.size() == 1 && !work.half_layers)
    join_layers(costs, chains.front(), memory, work.layers.front());
  return work;
}

double order_bound_s(const IterationWork& work) {
  return Search(GraphMaker(work).make(), never, Pruning::on).bound();
}

double best_order_s(const IterationWork& work, double below, Pruning pruning) {
  return Search(GraphMaker(work).make(), below, pruning).run();
}

}  // namespace sluice::test
