#include "engine/plan/policy_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "engine/console/tables.h"

namespace sluice {
namespace {

// In points.
constexpr double cell_size = 11;  ///< labels of neighbouring powers of two do not touch
constexpr double left_margin = 56;
constexpr double right_margin = 20;
constexpr double top_margin = 40;
constexpr double axis_height = 44;
constexpr double legend_line = 18;
constexpr double least_label_distance = 30;
constexpr double text_size = 12;
constexpr double letter_size = 10;
constexpr std::size_t most_legend_lines = 12;  ///< of one column
constexpr int steps_per_octave = 4;

/// As many as there are placements.
constexpr std::string_view letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-";
static_assert(letters.size() >= num_placements);

constexpr std::array<Phase, 2> phases = {Phase::prefill, Phase::decode};

bool is_power_of_two(std::int64_t value) { return (value & (value - 1)) == 0; }

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

std::string letter_in(const std::vector<Placement>& all, const Placement& placement) {
  return std::string(1, letters.at(index_in(all, placement)));
}

struct Cell {
  std::size_t x, y;
};
using Rows = std::vector<std::vector<Placement>>;

/// The cells that hang together with `first`, which are marked in `seen`.
std::vector<Cell> region_of(const Rows& rows, Cell first, std::vector<std::vector<bool>>& seen) {
  std::vector<Cell> region;
  std::vector<Cell> left = {first};
  seen[first.y][first.x] = true;
  const auto visit = [&](std::size_t x, std::size_t y) {
    if (y >= rows.size() || x >= rows[y].size() || seen[y][x]) return;
    if (!(rows[y][x] == rows[first.y][first.x])) return;
    seen[y][x] = true;
    left.push_back({x, y});
  };
  while (!left.empty()) {
    const auto [x, y] = left.back();
    left.pop_back();
    region.push_back({x, y});
    visit(x + 1, y);
    visit(x - 1, y);  // wraps round below 0: beyond every row
    visit(x, y + 1);
    visit(x, y - 1);
  }
  return region;
}

/// The cell of a region that is nearest to its middle.
Cell middle_of(const std::vector<Cell>& region) {
  double x = 0;
  double y = 0;
  for (const Cell& cell : region) {
    x += static_cast<double>(cell.x) / static_cast<double>(region.size());
    y += static_cast<double>(cell.y) / static_cast<double>(region.size());
  }
  return *std::min_element(region.begin(), region.end(), [&](const Cell& a, const Cell& b) {
    const auto distance = [&](const Cell& cell) {
      return std::hypot(static_cast<double>(cell.x) - x, static_cast<double>(cell.y) - y);
    };
    return distance(a) < distance(b);
  });
}

/// A letter in each region, black or white.
void draw_letters(cairo_t* cairo, const Rows& rows, double bottom,
                  const std::vector<Placement>& all) {
  std::vector<std::vector<bool>> seen(rows.size());
  for (std::size_t y = 0; y < rows.size(); ++y) seen[y].resize(rows[y].size());
  cairo_set_font_size(cairo, letter_size);
  for (std::size_t y = 0; y < rows.size(); ++y) {
    for (std::size_t x = 0; x < rows[y].size(); ++x) {
      if (seen[y][x]) continue;
      const std::vector<Cell> region = region_of(rows, {x, y}, seen);
      const Cell at = middle_of(region);
      const Colour colour = colour_number(index_in(all, rows[y][x]));
      const bool is_dark = 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue < 0.55;
      const double grey = is_dark ? 1 : 0;
      cairo_set_source_rgb(cairo, grey, grey, grey);
      show_text(cairo, left_margin + cell_size * (static_cast<double>(at.x) + 0.5),
                bottom - cell_size * (static_cast<double>(at.y) + 0.5) + 3.5,
                letter_in(all, rows[y][x]), Anchor::middle);
    }
  }
  cairo_set_font_size(cairo, text_size);
}

/// The batches that are powers of two, where there is room; the last label ends at the frame.
void draw_batches(cairo_t* cairo, const PolicyMap& map, double y) {
  const double right = left_margin + cell_size * static_cast<double>(map.batches.size());
  double next_label = 0;
  for (std::size_t x = 0; x < map.batches.size(); ++x) {
    const double middle = left_margin + cell_size * (static_cast<double>(x) + 0.5);
    if (!is_power_of_two(map.batches[x]) || middle < next_label) continue;
    const std::string text = fmt::format("{}", map.batches[x]);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo, text.c_str(), &extents);
    if (middle + extents.x_advance / 2 <= right) {
      show_text(cairo, middle, y, text, Anchor::middle);
    } else {
      show_text(cairo, right, y, text, Anchor::right);
    }
    next_label = middle + least_label_distance;
  }
}

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
  draw_letters(cairo, rows, bottom, all);
  cairo_set_source_rgb(cairo, 0, 0, 0);
  cairo_set_line_width(cairo, 1);
  cairo_rectangle(cairo, left_margin, top_margin, width, height);
  cairo_stroke(cairo);
  show_text(cairo, left_margin + width / 2, top_margin - 12,
            fmt::format("{} on {}: {}", map.model, map.machine, to_string(phase)), Anchor::middle);
  draw_batches(cairo, map, bottom + 15);
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
  const std::size_t legend_lines =
      all.size() <= most_legend_lines ? all.size() : (all.size() + 1) / 2;  // in two columns
  const double height = field_height * static_cast<double>(maps.size()) +
                        legend_line * static_cast<double>(legend_lines) + 12;
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
      const double x = left_margin + (i < legend_lines ? 0 : field_width);
      const double y = legend_line * static_cast<double>(i % legend_lines) + 8;
      use_colour(cairo, i);
      cairo_rectangle(cairo, x, y, 12, 12);
      cairo_fill(cairo);
      cairo_set_source_rgb(cairo, 0, 0, 0);
      show_text(cairo, x + 20, y + 11,
                fmt::format("{}  {}: {}", letters.at(i), all[i].to_string(), meaning(all[i])),
                Anchor::left);
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
        for (const Placement& placement : rows[y]) text += letter_in(all, placement);
        text += "\n";
      }
      text += "\n";
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    text += fmt::format("{}  {}: {}\n", letters.at(i), all[i].to_string(), meaning(all[i]));
  return text;
}

std::string policy_maps_as_json(const std::vector<PolicyMap>& maps) {
  nlohmann::ordered_json objects = nlohmann::ordered_json::array();
  for (const PolicyMap& map : maps) {
    nlohmann::ordered_json& object = objects.emplace_back();
    object["model"] = map.model;
    object["machine"] = map.machine;
    object["batches"] = map.batches;
    object["input_tokens"] = map.input_tokens;
    for (const Phase phase : phases) {
      nlohmann::ordered_json& rows = object[std::string(to_string(phase))];
      for (const auto& row : field(map, phase)) {
        nlohmann::ordered_json& placements = rows.emplace_back();
        for (const Placement& placement : row) placements.push_back(placement.to_string());
      }
    }
  }
  return format_objects(OutputFormat::json, objects);
}

}  // namespace sluice
