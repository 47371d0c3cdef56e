#include "engine/plan/policy_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace sluice {
namespace {

// In points.
constexpr double cell_size = 9;
constexpr double left_margin = 56;
constexpr double right_margin = 20;
constexpr double top_margin = 40;
constexpr double axis_height = 44;
constexpr double legend_line = 18;
constexpr double least_label_distance = 30;
constexpr int steps_per_octave = 4;

constexpr std::array<Phase, 2> phases = {Phase::prefill, Phase::decode};

/// `first` times powers of two to the quarter, rounded, up to `last`.
std::vector<std::int64_t> geometric(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> values;
  for (int i = 0;; ++i) {
    const double exact =
        static_cast<double>(first) * std::exp2(static_cast<double>(i) / steps_per_octave);
    const auto value = static_cast<std::int64_t>(std::llround(exact));
    if (value > last) return values;
    if (values.empty() || values.back() != value) values.push_back(value);
  }
}

const std::vector<std::vector<Placement>>& field(const PolicyMap& map, Phase phase) {
  return map.placements[static_cast<std::size_t>(phase)];
}

/// The placements of all maps, the most frequent first, so that all share colours and letters.
std::vector<Placement> placements_of(const std::vector<PolicyMap>& maps) {
  std::map<unsigned, int> counts;
  for (const PolicyMap& map : maps) {
    for (const Phase phase : phases) {
      for (const auto& row : field(map, phase)) {
        for (const Placement& placement : row) ++counts[placement.bits()];
      }
    }
  }
  std::vector<std::pair<unsigned, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<Placement> placements;
  placements.reserve(sorted.size());
  for (const auto& [bits, count] : sorted) placements.push_back(Placement::from_bits(bits));
  return placements;
}

std::size_t index_in(const std::vector<Placement>& all, const Placement& placement) {
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), placement) - all.begin());
}

std::string meaning(const Placement& placement) {
  if (placement == Placement(Device::cpu)) return "all on the CPU";
  if (placement == Placement(Device::gpu)) return "all on the GPU";
  std::string text;
  for (const Sublayer sublayer : layer_sublayers) {
    if (placement[sublayer] == Device::cpu)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", to_string(sublayer));
  }
  return text + " on the CPU";
}

bool is_power_of_two(std::int64_t value) { return (value & (value - 1)) == 0; }

void draw_field(cairo_t* cairo, const PolicyMap& map, Phase phase,
                const std::vector<Placement>& all) {
  const auto& rows = field(map, phase);
  const double width = cell_size * static_cast<double>(map.batches.size());
  const double height = cell_size * static_cast<double>(map.input_tokens.size());
  const double bottom = top_margin + height;
  for (std::size_t y = 0; y < rows.size(); ++y) {
    for (std::size_t x = 0; x < rows[y].size();) {
      std::size_t end = x + 1;  // neighbours that are alike are one box: small files
      while (end < rows[y].size() && rows[y][end] == rows[y][x]) ++end;
      use_colour(cairo, index_in(all, rows[y][x]));
      // A hair more than the cells, so that no seams show.
      cairo_rectangle(cairo, left_margin + cell_size * static_cast<double>(x),
                      bottom - cell_size * static_cast<double>(y + 1),
                      cell_size * static_cast<double>(end - x) + 0.3, cell_size + 0.3);
      cairo_fill(cairo);
      x = end;
    }
  }
  cairo_set_source_rgb(cairo, 0, 0, 0);
  cairo_set_line_width(cairo, 1);
  cairo_rectangle(cairo, left_margin, top_margin, width, height);
  cairo_stroke(cairo);
  show_text(cairo, left_margin + width / 2, top_margin - 12,
            fmt::format("{} on {}: {}", map.model, map.machine, to_string(phase)), Anchor::middle);
  double next_label = 0;
  for (std::size_t x = 0; x < map.batches.size(); ++x) {
    const double middle = left_margin + cell_size * (static_cast<double>(x) + 0.5);
    if (!is_power_of_two(map.batches[x]) || middle < next_label) continue;
    show_text(cairo, middle, bottom + 15, fmt::format("{}", map.batches[x]), Anchor::middle);
    next_label = middle + least_label_distance;
  }
  show_text(cairo, left_margin + width / 2, bottom + 33, "batch", Anchor::middle);
  for (std::size_t y = 0; y < map.input_tokens.size(); ++y) {
    if (is_power_of_two(map.input_tokens[y]))
      show_text(cairo, left_margin - 6, bottom - cell_size * (static_cast<double>(y) + 0.5) + 4,
                fmt::format("{}", map.input_tokens[y]), Anchor::right);
  }
  cairo_save(cairo);
  cairo_translate(cairo, 14, top_margin + height / 2);
  cairo_rotate(cairo, -std::acos(-1.0) / 2);
  show_text(cairo, 0, 0, "input tokens", Anchor::middle);
  cairo_restore(cairo);
}

/// Calls in the order that a policy may rely on. What does not fit has a place on the map all the
/// same, which is of layers that are not resident.
void start(CheckedPolicy& policy, const CostModel& costs, const Workload& workload) {
  policy.start(costs, workload);
  try {
    static_cast<void>(policy.plan_memory(CapacityCheck::hbm_only));
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    return;
  }
}

}  // namespace

PolicyMap make_policy_map(CheckedPolicy& policy, const CostModel& costs, const std::string& model,
                          const std::string& machine) {
  PolicyMap map = {.model = model,
                   .machine = machine,
                   .batches = geometric(1, 2048),
                   .input_tokens = geometric(32, 2048),
                   .placements = {}};
  const LayerHomes homes = LayerHomes::all(Tier::ddr, Tier::ddr);
  for (const std::int64_t tokens : map.input_tokens) {
    for (const Phase phase : phases) {
      std::vector<Placement>& row = map.placements[static_cast<std::size_t>(phase)].emplace_back();
      for (const std::int64_t batch : map.batches) {
        start(policy, costs, {.batch = batch, .input_tokens = tokens, .output_tokens = 1});
        row.push_back(policy.place(0,
                                   phase == Phase::prefill ? BatchShape::prefill(batch, tokens)
                                                           : BatchShape::decode(batch, tokens),
                                   homes));
      }
    }
  }
  return map;
}

std::string draw_policy_maps(const std::vector<PolicyMap>& maps, PictureFormat format) {
  const std::vector<Placement> all = placements_of(maps);
  const double field_width =
      left_margin + right_margin + cell_size * static_cast<double>(maps.front().batches.size());
  const double field_height =
      top_margin + axis_height + cell_size * static_cast<double>(maps.front().input_tokens.size());
  const double height = field_height * static_cast<double>(maps.size()) +
                        legend_line * static_cast<double>(all.size()) + 12;
  return draw_picture(2 * field_width, height, format, [&](cairo_t* cairo) {
    for (const PolicyMap& map : maps) {
      cairo_save(cairo);
      for (const Phase phase : phases) {
        draw_field(cairo, map, phase, all);
        cairo_translate(cairo, field_width, 0);
      }
      cairo_restore(cairo);
      cairo_translate(cairo, 0, field_height);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double y = legend_line * static_cast<double>(i) + 8;
      use_colour(cairo, i);
      cairo_rectangle(cairo, left_margin, y, 12, 12);
      cairo_fill(cairo);
      cairo_set_source_rgb(cairo, 0, 0, 0);
      show_text(cairo, left_margin + 20, y + 11,
                fmt::format("{}: {}", all[i].to_string(), meaning(all[i])), Anchor::left);
    }
  });
}

std::string policy_maps_as_text(const std::vector<PolicyMap>& maps) {
  const std::vector<Placement> all = placements_of(maps);
  std::string text;
  for (const PolicyMap& map : maps) {
    for (const Phase phase : phases) {
      text += fmt::format("{} on {}, {}: input tokens upwards, batch {} to {} to the right\n",
                          map.model, map.machine, to_string(phase), map.batches.front(),
                          map.batches.back());
      const auto& rows = field(map, phase);
      for (std::size_t y = rows.size(); y-- > 0;) {
        text += is_power_of_two(map.input_tokens[y]) ? fmt::format("{:6} ", map.input_tokens[y])
                                                     : std::string(7, ' ');
        for (const Placement& placement : rows[y])
          text += static_cast<char>('A' + index_in(all, placement));
        text += "\n";
      }
      text += "\n";
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    text += fmt::format("{}  {}: {}\n", static_cast<char>('A' + i), all[i].to_string(),
                        meaning(all[i]));
  return text;
}

}  // namespace sluice
