#include "engine/replay/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <utility>

#include "engine/draw/plot.h"

namespace sluice {
namespace {

constexpr double most_latency_ratio = 20;
constexpr std::size_t num_time_parts = 200;

/// A line for each policy, in the same colour in all plots.
PlotSeries& policy_series(LinePlot& plot, const std::string& policy, std::size_t colour) {
  for (PlotSeries& series : plot.series) {
    if (series.label == policy) return series;
  }
  return plot.series.emplace_back(PlotSeries{.label = policy, .points = {}, .colour = colour});
}

LinePlot load_plot(const std::string& title) {
  return {.title = title,
          .x_label = "requests/s that come",
          .y_label = "mean latency per output token, s",
          .series = {},
          .limit_label = {},
          .x_axis = XAxis::linear};
}

/// The place of `value` in `known`, at whose end it is put where it is new.
template <typename Value>
std::size_t place_of(const Value& value, std::vector<Value>& known) {
  const auto found = std::find(known.begin(), known.end(), value);
  if (found != known.end()) return static_cast<std::size_t>(found - known.begin());
  known.push_back(value);
  return known.size() - 1;
}

/// One plot for each model, machine and workload.
std::vector<LinePlot> load_plots(const std::vector<ReplayPoint>& points) {
  std::vector<LinePlot> plots;
  std::vector<std::array<std::string, 3>> subjects;
  std::vector<std::string> policies;
  for (const ReplayPoint& point : points) {
    if (!point.rate_per_s || !point.statistics.per_token_latency_s) continue;
    const std::size_t plot = place_of({point.model, point.machine, point.workload}, subjects);
    if (plot == plots.size()) {
      const std::string workload = std::filesystem::path(point.workload).filename().string();
      plots.push_back(load_plot(fmt::format("{}, {}, {}", point.model, point.machine, workload)));
    }
    policy_series(plots[plot], point.policy, place_of(point.policy, policies))
        .points.emplace_back(*point.rate_per_s, point.statistics.per_token_latency_s->mean);
  }
  if (plots.empty()) plots.push_back(load_plot("no point has a rate and completed requests"));
  return plots;
}

/// So that overload does not press all else to the ground.
double top_of(const LinePlot& plot) {
  double least = HUGE_VAL;
  double most = 0;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [rate, latency] : series.points) {
      least = std::min(least, latency);
      most = std::max(most, latency);
    }
  }
  const double top = std::max(most_latency_ratio * least, 1.25 * plot.limit);
  return most > top ? top : 0;
}

LinePlot timeline_plot(const std::string& title, const std::string& y_label) {
  return {.title = title,
          .x_label = "time, s",
          .y_label = y_label,
          .series = {},
          .limit_label = {},
          .x_axis = XAxis::linear};
}

void add_series(LinePlot& plot, const std::string& label, TimeCurve points) {
  plot.series.push_back(
      {.label = label, .points = std::move(points), .colour = plot.series.size()});
}

using SampleValue = std::function<double(const ReplaySample&)>;

std::vector<double> values_of(const ReplayTimeline& timeline, const SampleValue& value) {
  std::vector<double> values;
  values.reserve(timeline.samples.size());
  for (const ReplaySample& sample : timeline.samples) values.push_back(value(sample));
  return values;
}

void add_levels(LinePlot& plot, const std::string& label, const ReplayTimeline& timeline,
                const SampleValue& level) {
  add_series(plot, label, mean_levels(timeline, values_of(timeline, level), num_time_parts));
}

LinePlot queue_plot(const ReplayTimeline& timeline, const std::string& title) {
  LinePlot plot = timeline_plot(title, "requests");
  const auto count = [](std::int64_t ReplaySample::*member) {
    return [member](const ReplaySample& sample) { return static_cast<double>(sample.*member); };
  };
  add_levels(plot, "waiting", timeline, count(&ReplaySample::waiting));
  add_levels(plot, "running", timeline, count(&ReplaySample::running));
  if (timeline.pools.size() > 1)
    add_levels(plot, "running, KV not in " + timeline.pools.front().name, timeline,
               count(&ReplaySample::swapped));
  return plot;
}

LinePlot pool_plot(const ReplayTimeline& timeline) {
  LinePlot plot = timeline_plot("KV pools", "share taken");
  plot.y_top = 1;
  for (std::size_t i = 0; i < timeline.pools.size(); ++i) {
    const ReplayTimeline::Pool& pool = timeline.pools[i];
    add_levels(plot, fmt::format("{}, {} tokens", pool.name, pool.tokens), timeline,
               [&, i](const ReplaySample& sample) {
                 return static_cast<double>(sample.pool_tokens[i]) /
                        static_cast<double>(pool.tokens);
               });
  }
  return plot;
}

LinePlot busy_plot(const ReplayTimeline& timeline) {
  LinePlot plot = timeline_plot("Devices and links", "share of the time busy");
  plot.y_top = 1;
  for (std::size_t i = 0; i < timeline.resources.size(); ++i) {
    const auto busy_s =
        values_of(timeline, [i](const ReplaySample& sample) { return sample.busy_s[i]; });
    add_series(plot, timeline.resources[i], mean_rates(timeline, busy_s, num_time_parts));
  }
  return plot;
}

}  // namespace

std::string draw_load_latency(const std::vector<ReplayPoint>& points,
                              std::optional<double> latency_limit_s, PictureFormat format) {
  std::vector<LinePlot> plots = load_plots(points);
  for (LinePlot& plot : plots) {
    for (PlotSeries& series : plot.series) std::sort(series.points.begin(), series.points.end());
    if (latency_limit_s) {
      plot.limit = *latency_limit_s;
      plot.limit_label = fmt::format("{:g} s", plot.limit);
    }
    plot.y_top = top_of(plot);
  }
  return draw_plots(plots, format);
}

std::string draw_timeline(const ReplayTimeline& timeline, const std::string& title,
                          PictureFormat format) {
  return draw_plots({queue_plot(timeline, title), pool_plot(timeline), busy_plot(timeline)},
                    format);
}

}  // namespace sluice
