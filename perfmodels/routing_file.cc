#include "perfmodels/routing_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
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
                  layers.size(), model_.num_layers, known_name());
    }
    for (std::size_t i = 0; i < layers.size(); ++i)
      recorded.layers.push_back(layer(layers[i], i, recorded.rows));
    if (std::all_of(recorded.layers.begin(), recorded.layers.end(),
                    [](const auto& counts) { return counts.empty(); }))
      throw Error("{}: all of \"layers\" are empty: there are no counts", where_);
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
    if (!model_.name.empty() && plain_name(name) != plain_name(model_.name)) {
      throw Error(
          "{}: of another model: {}, expected {}; where both have the same weights, edit "
          "its \"model\"",
          where_, quote(name), quote(model_.name));
    }
    return name;
  }

  std::string_view known_name() const {
    return model_.name.empty() ? std::string_view("the model") : std::string_view(model_.name);
  }

  std::vector<std::int64_t> layer(const Json& json, std::size_t number, std::int64_t rows) const {
    const std::string what = fmt::format("\"layers\"[{}]", number);
    list(json, what);
    if (json.empty()) return {};  // it has one FFN
    if (static_cast<std::int64_t>(json.size()) != model_.num_experts) {
      throw Error("{}: of another model: {} has {} experts, expected {} of {}", where_, what,
                  json.size(), model_.num_experts, known_name());
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
        where_, what, sum, is_last ? "at most " : "", rows * k, k, known_name(), rows);
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
