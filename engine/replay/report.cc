#include "engine/replay/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/json.h"
#include "base/units.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using Points = std::vector<ReplayPoint>;

// JSON and CSV

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const std::optional<Distribution>& found) {
  Json json;
  for (const auto& [name, value] :
       {std::pair{"mean", &Distribution::mean}, std::pair{"p50", &Distribution::p50},
        std::pair{"p90", &Distribution::p90}, std::pair{"p99", &Distribution::p99}})
    json[name] = found ? Json((*found).*value) : Json();
  return json;
}

Json json_of(const ReplayPoint& point) {
  const ReplayStatistics& found = point.statistics;
  Json json;
  json["model"] = point.model;
  json["machine"] = point.machine;
  json["policy"] = point.policy;
  json["workload"] = point.workload;
  json["arrivals"] = point.arrivals;
  json["seed"] = point.seed;
  json["rate_per_s"] = or_null(point.rate_per_s);
  json["requests"] = found.requests;
  json["completed"] = found.completed;
  json["rejected"] = found.rejected;
  json["requests_per_s"] = or_null(found.requests_per_s);
  json["output_tokens_per_s"] = or_null(found.output_tokens_per_s);
  json["per_token_latency_s"] = json_of(found.per_token_latency_s);
  json["ttft_s"] = json_of(found.ttft_s);
  json["tpot_s"] = json_of(found.tpot_s);
  json["queue_s"] = json_of(found.queue_s);
  json["slo_attainment"] = or_null(found.slo_attainment);
  json["goodput_per_s"] = or_null(point.goodput_per_s);
  json["iterations"] = {{"one_sub_batch", point.one_sub_batch_iterations},
                        {"two_sub_batches", point.two_sub_batch_iterations}};
  json["swapped_tokens"] = {{"in", point.swapped_in_tokens}, {"out", point.swapped_out_tokens}};
  json["preemptions"] = point.preemptions;
  json["prefix_hit_tokens"] = point.prefix_hit_tokens;
  json["busy_share"] = Json::object();
  for (const auto& [name, share] : point.busy_share) json["busy_share"][name] = share;
  json["lower_bound_requests_per_s"] = or_null(point.lower_bound_requests_per_s);
  json["binding_resource"] = point.binding_resource.empty() ? Json() : Json(point.binding_resource);
  json["little_error"] = point.littles_law ? Json(point.littles_law->relative_error) : Json();
  return json;
}

/// Objects within become fields of their own: "ttft_s_mean", "busy_share_link_to_gpu".
Json flat(const Json& object) {
  Json fields;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_object()) {
      fields[name] = value;
      continue;
    }
    for (const auto& [inner, figure] : value.items()) {
      std::string column = fmt::format("{}_{}", name, inner);
      std::replace(column.begin(), column.end(), ' ', '_');
      fields[column] = figure;
    }
  }
  return fields;
}

/// All with the same fields in the same order: machines differ in what may be busy.
Json flat_objects(const Points& points) {
  Json objects = Json::array();
  Json all_fields;
  for (const ReplayPoint& point : points) {
    objects.push_back(flat(json_of(point)));
    for (const auto& [name, value] : objects.back().items()) all_fields[name] = Json();
  }
  for (Json& object : objects) {
    Json whole = all_fields;
    whole.update(object);
    object = std::move(whole);
  }
  return objects;
}

// Table

std::string number_text(const std::optional<double>& value) {
  if (!value) return "-";
  return *value >= 100 ? fmt::format("{:.0f}", *value) : fmt::format("{:.3g}", *value);
}

std::string share_text(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", *share * 100) : "-";
}

std::string time_text(const std::optional<Distribution>& found, double Distribution::*value) {
  return found ? format_seconds((*found).*value) : "-";
}

struct Column {
  std::string title;
  std::string (*cell)(const ReplayPoint& point);
};

/// What tells points from each other has a column where it does.
const std::vector<Column>& naming_columns() {
  static const std::vector<Column> columns = {
      {"model", [](const ReplayPoint& p) { return p.model; }},
      {"machine", [](const ReplayPoint& p) { return p.machine; }},
      {"requests", [](const ReplayPoint& p) { return p.workload; }},
      {"arrivals", [](const ReplayPoint& p) { return p.arrivals; }},
      {"policy", [](const ReplayPoint& p) { return p.policy; }}};
  return columns;
}

const std::vector<Column>& figure_columns() {
  using D = Distribution;
  using P = ReplayPoint;
  static const std::vector<Column> columns = {
      {"completed",
       [](const P& p) {
         return fmt::format("{} of {}", p.statistics.completed, p.statistics.requests);
       }},
      {"requests/s", [](const P& p) { return number_text(p.statistics.requests_per_s); }},
      {"tokens/s", [](const P& p) { return number_text(p.statistics.output_tokens_per_s); }},
      {"per token",
       [](const P& p) { return time_text(p.statistics.per_token_latency_s, &D::mean); }},
      {"P90", [](const P& p) { return time_text(p.statistics.per_token_latency_s, &D::p90); }},
      {"TTFT P50", [](const P& p) { return time_text(p.statistics.ttft_s, &D::p50); }},
      {"P99", [](const P& p) { return time_text(p.statistics.ttft_s, &D::p99); }},
      {"TPOT P50", [](const P& p) { return time_text(p.statistics.tpot_s, &D::p50); }},
      {"P99", [](const P& p) { return time_text(p.statistics.tpot_s, &D::p99); }},
      {"SLO kept", [](const P& p) { return share_text(p.statistics.slo_attainment); }},
      {"at most/s", [](const P& p) { return number_text(p.lower_bound_requests_per_s); }},
      {"bound by",
       [](const P& p) { return p.binding_resource.empty() ? "-" : p.binding_resource; }}};
  return columns;
}

/// Whether all points have the same in the column.
bool is_constant(const Points& points, const Column& column) {
  return std::all_of(points.begin(), points.end(), [&](const ReplayPoint& point) {
    return column.cell(point) == column.cell(points.front());
  });
}

TableRows rows_of(const Points& points) {
  std::vector<Column> columns;
  for (const Column& column : naming_columns()) {
    if (column.title == "policy" || !is_constant(points, column)) columns.push_back(column);
  }
  for (const Column& column : figure_columns()) {
    if (column.title != "SLO kept" || !is_constant(points, column) ||
        points.front().statistics.slo_attainment)
      columns.push_back(column);
  }
  TableRows rows(1);
  for (const Column& column : columns) rows.front().push_back(column.title);
  for (const ReplayPoint& point : points) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Column& column : columns) row.push_back(column.cell(point));
  }
  return rows;
}

/// What all points share, ahead of the table.
std::string heading(const Points& points) {
  std::string text;
  for (const Column& column : naming_columns()) {
    if (column.title == "policy" || !is_constant(points, column)) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : " · ", column.title,
                        column.cell(points.front()));
  }
  return text.empty() ? text : text + "\n\n";
}

auto curve_of(const ReplayPoint& point) {
  return std::tie(point.model, point.machine, point.workload, point.policy);
}

/// One line a curve that has one.
std::string goodput_lines(const Points& points) {
  std::string text;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const ReplayPoint& point = points[i];
    const bool seen =
        std::any_of(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const ReplayPoint& other) { return curve_of(other) == curve_of(point); });
    if (seen || !point.goodput_per_s) continue;
    text += fmt::format(
        "goodput of {} ({}, {}, {}): {} requests/s, the highest rate at which "
        "{:.0f} % keep the SLO\n",
        point.policy, point.model, point.machine, point.workload, number_text(point.goodput_per_s),
        goodput_attainment * 100);
  }
  return text;
}

/// Of the point that is farthest off.
std::string littles_law_line(const Points& points) {
  const LittlesLaw* worst = nullptr;
  for (const ReplayPoint& point : points) {
    if (!point.littles_law) continue;
    if (worst == nullptr || point.littles_law->relative_error > worst->relative_error)
      worst = &*point.littles_law;
  }
  if (worst == nullptr) return {};
  return fmt::format(
      "Little's law holds within {:.2g} %: at most off, from {:.4g} to {:.4g} s, {:.4g} requests "
      "in "
      "the system, {:.4g} requests/s x {:.4g} s\n",
      worst->relative_error * 100, worst->window.from_s, worst->window.to_s, worst->mean_in_system,
      worst->arrivals_per_s, worst->mean_time_s);
}

}  // namespace

void set_goodput(std::vector<ReplayPoint>& points) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, std::vector<LoadPoint>>
      curves;
  for (const ReplayPoint& point : points) {
    if (point.rate_per_s && point.statistics.slo_attainment)
      curves[curve_of(point)].push_back({*point.rate_per_s, *point.statistics.slo_attainment});
  }
  for (ReplayPoint& point : points) point.goodput_per_s = goodput_per_s(curves[curve_of(point)]);
}

std::string format_replay(OutputFormat format, const std::vector<ReplayPoint>& points) {
  if (format == OutputFormat::csv) return format_objects(format, flat_objects(points));
  if (format == OutputFormat::json) {
    Json objects = Json::array();
    for (const ReplayPoint& point : points) {
      objects.push_back(json_of(point));
      if (!point.cpu_plan.empty()) objects.back()["cpu_plan"] = Json::parse(point.cpu_plan);
    }
    return format_objects(format, objects);
  }
  if (points.empty()) return "no points\n";
  const std::string notes = goodput_lines(points) + littles_law_line(points);
  const TableRows rows = rows_of(points);
  return heading(points) +
         (format == OutputFormat::table ? format_table(rows) : format_markdown(rows)) +
         (notes.empty() ? "" : "\n" + notes);
}

}  // namespace sluice
