#include "perfmodels/routing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json.h"

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
      : num_experts(static_cast<std::int64_t>(of_layers.front().size())),
        experts_per_token(per_token),
        chances(std::move(of_layers)) {}

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
    return touched / static_cast<double>(chances.size());
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
  return tables_->of_layer(layer)[static_cast<std::size_t>(expert)];
}

std::vector<std::int64_t> Routing::hottest(std::int64_t layer, std::int64_t count) const {
  const std::vector<double>& chances = tables_->of_layer(layer);
  std::vector<std::int64_t> experts(chances.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(), [&](std::int64_t a, std::int64_t b) {
    return chances[static_cast<std::size_t>(a)] > chances[static_cast<std::size_t>(b)];
  });
  experts.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, num_experts())));
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
  return sum / static_cast<double>(layers);
}

// ---- Routing files

namespace {

using Json = nlohmann::json;

constexpr std::int64_t most_rows = std::int64_t{1} << 48;  ///< times any k no overflow

/// "qwen3" of "models/Qwen3/"
std::string plain_name(std::string_view name) {
  while (name.size() > 1 && name.back() == '/') name.remove_suffix(1);
  if (const auto slash = name.rfind('/'); slash != std::string_view::npos && name.size() > 1)
    name.remove_prefix(slash + 1);
  std::string plain(name);
  std::transform(plain.begin(), plain.end(), plain.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return plain;
}

class RoutingReader {
 public:
  RoutingReader(std::string_view where, const RoutedModel& model) : where_(where), model_(model) {}

  RecordedRouting read(const Json& json) const {
    if (!json.is_object())
      throw Error(
          "{}: {}, expected an object with \"model\", \"layers\", \"rows\" and "
          "\"touched_by_rows\": a routing file, which --record-routing writes",
          where_, describe(json));
    RecordedRouting recorded;
    recorded.model = name(field(json, "model"));
    recorded.rows = count(field(json, "rows"), "\"rows\"", 1, most_rows);
    const Json& layers = list(field(json, "layers"), "\"layers\"");
    if (layers.empty()) throw Error("{}: \"layers\" is empty: there are no counts", where_);
    if (static_cast<std::int64_t>(layers.size()) != model_.num_layers) {
      throw Error("{}: of another model: counts of {} layers, expected {} of {}", where_,
                  layers.size(), model_.num_layers, model_.name);
    }
    for (std::size_t i = 0; i < layers.size(); ++i)
      recorded.layers.push_back(layer(layers[i], i, recorded.rows));
    recorded.touched_by_rows = touched(list(field(json, "touched_by_rows"), "\"touched_by_rows\""));
    return recorded;
  }

 private:
  const Json& field(const Json& json, const char* key) const {
    const auto found = json.find(key);
    if (found != json.end()) return *found;
    throw Error("{}: \"{}\" is missing; record the routing again", where_, key);
  }

  const Json& list(const Json& json, std::string_view what) const {
    if (!json.is_array())
      throw Error("{}: {} is {}, expected a list", where_, what, describe(json));
    return json;
  }

  std::int64_t count(const Json& json, std::string_view what, std::int64_t least,
                     std::int64_t most) const {
    if (const auto value = whole_number(json, least, most)) return *value;
    throw Error("{}: {} is {}, expected a whole number from {} to {}", where_, what, describe(json),
                least, most);
  }

  std::string name(const Json& json) const {
    if (!json.is_string())
      throw Error("{}: \"model\" is {}, expected a name", where_, describe(json));
    auto name = json.get<std::string>();
    if (plain_name(name) != plain_name(model_.name)) {
      throw Error(
          "{}: of another model: {}, expected {}; where both have the same weights, edit "
          "its \"model\"",
          where_, quote(name), quote(model_.name));
    }
    return name;
  }

  std::vector<std::int64_t> layer(const Json& json, std::size_t number, std::int64_t rows) const {
    const std::string what = fmt::format("\"layers\"[{}]", number);
    list(json, what);
    if (json.empty()) throw Error("{}: {} is empty: there are no counts", where_, what);
    if (static_cast<std::int64_t>(json.size()) != model_.num_experts) {
      throw Error("{}: of another model: {} has {} experts, expected {} of {}", where_, what,
                  json.size(), model_.num_experts, model_.name);
    }
    std::vector<std::int64_t> counts;
    counts.reserve(json.size());
    std::int64_t sum = 0;
    std::int64_t highest = 0;
    for (std::size_t i = 0; i < json.size(); ++i) {
      counts.push_back(count(json[i], fmt::format("{}[{}]", what, i), 0, rows));
      sum += counts.back();
      highest = std::max(highest, counts.back());
    }
    check_sum(what, number, sum, highest, rows);
    return counts;
  }

  /// Rows that draw no token end before the last layer's experts.
  void check_sum(std::string_view what, std::size_t number, std::int64_t sum, std::int64_t highest,
                 std::int64_t rows) const {
    const std::int64_t k = model_.experts_per_token;
    if (sum == 0) throw Error("{}: {}: all counts are 0", where_, what);
    const bool is_last = static_cast<std::int64_t>(number) + 1 == model_.num_layers;
    const bool fits =
        is_last ? sum % k == 0 && sum <= rows * k && highest <= sum / k : sum == rows * k;
    if (fits) return;
    throw Error(
        "{}: {}: the counts' sum is {}, expected {}{}: {} experts of {} for each of {} rows",
        where_, what, sum, is_last ? "at most " : "", rows * k, k, model_.name, rows);
  }

  std::vector<TouchedExperts> touched(const Json& json) const {
    std::vector<TouchedExperts> all;
    all.reserve(json.size());
    for (std::size_t i = 0; i < json.size(); ++i) {
      const std::string what = fmt::format("\"touched_by_rows\"[{}]", i);
      if (!json[i].is_array() || json[i].size() != 2) {
        throw Error(
            "{}: {} is {}, expected a pair such as [16, 81.5]: rows of an iteration, and "
            "experts touched on average",
            where_, what, describe(json[i]));
      }
      const std::int64_t rows = count(json[i][0], what + "[0]", 1, most_rows);
      if (!all.empty() && rows <= all.back().rows)
        throw Error("{}: {} is of {} rows, behind {}: expected more", where_, what, rows,
                    all.back().rows);
      all.push_back({rows, mean(json[i][1], rows, what)});
    }
    return all;
  }

  double mean(const Json& json, std::int64_t rows, std::string_view what) const {
    constexpr double rounding = 1e-6;
    const auto least = static_cast<double>(model_.experts_per_token);
    const double most =
        std::min(static_cast<double>(model_.num_experts), least * static_cast<double>(rows));
    if (json.is_number()) {
      const double value = json.get<double>();
      if (value >= least * (1 - rounding) && value <= most * (1 + rounding))
        return std::clamp(value, least, most);
    }
    throw Error("{}: {}[1] is {}, expected {} to {} experts that {} rows touch", where_, what,
                describe(json), least, most, rows);
  }

  std::string_view where_;
  const RoutedModel& model_;
};

}  // namespace

RecordedRouting parse_routing(std::string_view text, std::string_view where,
                              const RoutedModel& model) {
  return RoutingReader(where, model).read(parse_json(text, where, DuplicateKeys::refuse));
}

std::string format_routing(const RecordedRouting& recorded) {
  nlohmann::ordered_json json;
  json["model"] = recorded.model;
  json["rows"] = recorded.rows;
  json["touched_by_rows"] = nlohmann::ordered_json::array();
  for (const TouchedExperts& seen : recorded.touched_by_rows)
    json["touched_by_rows"].push_back({seen.rows, seen.mean});
  json["layers"] = recorded.layers;
  return json_text(json) + "\n";
}

}  // namespace sluice
