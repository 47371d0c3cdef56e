#include "perfmodels/routing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace sluice {

double experts_touched(std::int64_t num_experts, std::int64_t experts_per_token, double rows) {
  if (num_experts == 0) return 1;
  const auto experts = static_cast<double>(num_experts);
  const double missed = 1 - static_cast<double>(experts_per_token) / experts;
  return experts * (1 - std::pow(missed, rows));
}

// ---- The chance to be among those that are drawn

namespace {

/// Of some clocks: how many have rung, up to the most that count. Element n is P(n have rung).
using RungCounts = std::vector<double>;

/// Adds a clock that has rung with some chance.
void add_clock(double rung, RungCounts& counts) {
  for (std::size_t n = counts.size() - 1; n > 0; --n)
    counts[n] = counts[n] * (1 - rung) + counts[n - 1] * rung;
  counts[0] *= 1 - rung;
}

/// P(at most counts.size() - 1 of the others have rung) of each clock in [first, last); `outside`
/// counts those that are not in it. Only adds, so that no digit is lost.
void leave_each_out(const std::vector<double>& rung, std::size_t first, std::size_t last,
                    const RungCounts& outside, std::vector<double>& others) {
  if (last - first == 1) {
    others[first] = std::accumulate(outside.begin(), outside.end(), 0.0);
    return;
  }
  const std::size_t middle = first + (last - first) / 2;
  RungCounts with_right = outside;
  for (std::size_t i = middle; i < last; ++i) add_clock(rung[i], with_right);
  leave_each_out(rung, first, middle, with_right, others);
  RungCounts with_left = outside;
  for (std::size_t i = first; i < middle; ++i) add_clock(rung[i], with_left);
  leave_each_out(rung, middle, last, with_left, others);
}

}  // namespace

std::vector<double> inclusion_chances(const std::vector<double>& weights, std::int64_t chosen) {
  constexpr double step = 0.125;  // in log(t)
  constexpr double nothing = 1e-18;
  const auto limit = static_cast<std::size_t>(chosen);
  if (limit >= weights.size()) return std::vector<double>(weights.size(), 1);
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double least = *std::min_element(weights.begin(), weights.end());
  RungCounts none(limit, 0);
  none[0] = 1;
  std::vector<double> chances(weights.size(), 0);
  std::vector<double> rung(weights.size());
  std::vector<double> others(weights.size());
  for (double log_t = std::log(nothing / all); log_t < std::log(50 / least); log_t += step) {
    const double t = std::exp(log_t);
    RungCounts counts(limit + 1, 0);
    counts[0] = 1;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      rung[i] = -std::expm1(-weights[i] * t);
      add_clock(rung[i], counts);
    }
    // Later it is less likely still.
    if (std::accumulate(counts.begin(), counts.end(), 0.0) < nothing) break;
    leave_each_out(rung, 0, weights.size(), none, others);
    for (std::size_t i = 0; i < weights.size(); ++i)
      chances[i] += step * weights[i] * t * std::exp(-weights[i] * t) * others[i];
  }
  for (double& chance : chances) chance = std::min(chance, 1.0);
  return chances;
}

// ---- Routing

struct Routing::Tables {
  /// Behind so many rows the share of experts missed is that of independent rows, to this power.
  struct Power {
    double log_rows;
    double power;
    bool operator==(const Power&) const = default;
  };

  std::int64_t num_experts;
  std::int64_t experts_per_token;
  bool is_uniform = false;
  std::vector<std::vector<double>> chances;  ///< by layer, then expert; one layer: all are alike
  std::vector<Power> powers;                 ///< rising; empty: rows are independent

  Tables(std::int64_t per_token, std::vector<std::vector<double>> of_layers)
      : num_experts(most_of(of_layers)),
        experts_per_token(per_token),
        chances(std::move(of_layers)) {}

  static std::int64_t most_of(const std::vector<std::vector<double>>& layers) {
    std::size_t most = 0;
    for (const std::vector<double>& layer : layers) most = std::max(most, layer.size());
    return static_cast<std::int64_t>(most);
  }

  /// Layers with experts.
  double num_mixtures() const {
    return static_cast<double>(std::count_if(chances.begin(), chances.end(),
                                             [](const auto& layer) { return !layer.empty(); }));
  }

  bool equals(const Tables& other) const {
    return experts_per_token == other.experts_per_token && is_uniform == other.is_uniform &&
           chances == other.chances && powers == other.powers;
  }

  const std::vector<double>& of_layer(std::int64_t layer) const {
    return chances[chances.size() == 1 ? 0 : static_cast<std::size_t>(layer) % chances.size()];
  }

  /// Of rows that choose independently.
  double independent(double rows) const {
    if (is_uniform) return sluice::experts_touched(num_experts, experts_per_token, rows);
    if (rows <= 0) return 0;
    double touched = 0;
    for (const std::vector<double>& layer : chances) {
      for (const double chance : layer) touched -= std::expm1(rows * std::log1p(-chance));
    }
    return touched / num_mixtures();
  }

  double power_at(double rows) const {
    const double log_rows = std::log(std::max(rows, 1.0));
    const auto next = std::find_if(powers.begin(), powers.end(),
                                   [&](const Power& power) { return power.log_rows >= log_rows; });
    if (next == powers.end()) return powers.back().power;
    if (next == powers.begin()) return next->power;
    const Power& before = *(next - 1);
    const double part = (log_rows - before.log_rows) / (next->log_rows - before.log_rows);
    return before.power + part * (next->power - before.power);
  }

  double touched(double rows) const {
    if (powers.empty() || rows <= 0) return independent(rows);
    const auto experts = static_cast<double>(num_experts);
    const double missed = 1 - independent(rows) / experts;
    return experts * (1 - std::pow(std::max(missed, 0.0), power_at(rows)));
  }

  void learn(const std::vector<TouchedExperts>& touched_by_rows) {
    constexpr double nothing = 1e-9;  // of a share: its logarithm says no more
    powers.push_back({0, 1});
    for (const TouchedExperts& seen : touched_by_rows) {
      const auto experts = static_cast<double>(num_experts);
      const auto rows = static_cast<double>(seen.rows);
      const double missed = 1 - independent(rows) / experts;
      if (seen.rows == 1 || missed < nothing) continue;
      powers.push_back({std::log(rows),
                        std::log(std::max(1 - seen.mean / experts, nothing)) / std::log(missed)});
    }
  }

  /// Cost models ask for the same numbers of rows again and again; a file has a sum over all
  /// experts of all layers.
  double touched_once(double rows) const {
    constexpr std::size_t most = 4096;
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(rows); found != known.end()) return found->second;
    if (known.size() == most) known.clear();
    return known[rows] = touched(rows);
  }

  mutable std::mutex mutex;
  mutable std::map<double, double> known;
};

Routing Routing::uniform(std::int64_t num_experts, std::int64_t experts_per_token) {
  const double chance = static_cast<double>(experts_per_token) / static_cast<double>(num_experts);
  std::vector<std::vector<double>> chances = {
      std::vector<double>(static_cast<std::size_t>(num_experts), chance)};
  auto tables = std::make_shared<Tables>(experts_per_token, std::move(chances));
  tables->is_uniform = true;
  return Routing(std::move(tables));
}

Routing Routing::zipf(double exponent, std::int64_t num_experts, std::int64_t experts_per_token) {
  if (exponent == 0) return uniform(num_experts, experts_per_token);
  std::vector<double> weights;
  weights.reserve(static_cast<std::size_t>(num_experts));
  for (std::int64_t i = 0; i < num_experts; ++i)
    weights.push_back(std::pow(static_cast<double>(i + 1), -exponent));
  std::vector<std::vector<double>> chances = {inclusion_chances(weights, experts_per_token)};
  return Routing(std::make_shared<Tables>(experts_per_token, std::move(chances)));
}

Routing Routing::recorded(const RecordedRouting& recorded, std::int64_t experts_per_token) {
  std::vector<std::vector<double>> chances;
  chances.reserve(recorded.layers.size());
  for (const std::vector<std::int64_t>& counts : recorded.layers) {
    const auto choices =
        static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    const double rows = choices / static_cast<double>(experts_per_token);
    std::vector<double>& layer = chances.emplace_back();
    layer.reserve(counts.size());
    for (const std::int64_t count : counts) layer.push_back(static_cast<double>(count) / rows);
  }
  auto tables = std::make_shared<Tables>(experts_per_token, std::move(chances));
  if (!recorded.touched_by_rows.empty()) tables->learn(recorded.touched_by_rows);
  return Routing(std::move(tables));
}

bool Routing::operator==(const Routing& other) const {
  return tables_ == other.tables_ || tables_->equals(*other.tables_);
}

std::int64_t Routing::num_experts() const { return tables_->num_experts; }

std::int64_t Routing::experts_per_token() const { return tables_->experts_per_token; }

double Routing::experts_touched(double rows) const {
  return tables_->is_uniform ? tables_->independent(rows) : tables_->touched_once(rows);
}

double Routing::rows_of_an_expert(double rows) const {
  return rows * static_cast<double>(experts_per_token()) / experts_touched(rows);
}

double Routing::chance(std::int64_t layer, std::int64_t expert) const {
  const std::vector<double>& chances = tables_->of_layer(layer);
  return chances.empty() ? 0 : chances[static_cast<std::size_t>(expert)];
}

std::vector<std::int64_t> Routing::hottest(std::int64_t layer, std::int64_t count) const {
  const std::vector<double>& chances = tables_->of_layer(layer);
  std::vector<std::int64_t> experts(chances.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(), [&](std::int64_t a, std::int64_t b) {
    return chances[static_cast<std::size_t>(a)] > chances[static_cast<std::size_t>(b)];
  });
  experts.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, std::ssize(chances))));
  return experts;
}

double Routing::hot_share(std::int64_t layer, std::int64_t count) const {
  double caught = 0;
  for (const std::int64_t expert : hottest(layer, count)) caught += chance(layer, expert);
  return caught / static_cast<double>(experts_per_token());
}

double Routing::hot_share(std::int64_t count) const {
  const std::size_t layers = tables_->chances.size();
  double sum = 0;
  for (std::size_t i = 0; i < layers; ++i) sum += hot_share(static_cast<std::int64_t>(i), count);
  return sum / tables_->num_mixtures();
}

}  // namespace sluice
