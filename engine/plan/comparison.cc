#include "engine/plan/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "engine/plan/plan_report.h"
#include "engine/plan/policy_choice.h"

namespace sluice {
namespace {

/// A figure, and how many times better the first of two runs is by it.
struct Metric {
  const char* title;
  std::optional<double> (*gain)(const RunFigures& run, const RunFigures& baseline);
  /// With its unit; empty where there is none.
  std::string (*figure)(const RunFigures& run);
};

constexpr Metric throughput = {
    "tokens/s, times more (latency, times shorter)",
    [](const RunFigures& run, const RunFigures& baseline) {
      return std::optional(run.tokens_per_s / baseline.tokens_per_s);
    },
    [](const RunFigures& run) { return rate_text(run.tokens_per_s) + "/s"; }};
constexpr Metric first_token = {"time to first token, times shorter",
                                [](const RunFigures& run, const RunFigures& baseline) {
                                  return std::optional(baseline.ttft_s / run.ttft_s);
                                },
                                [](const RunFigures& run) { return seconds_text(run.ttft_s); }};
constexpr Metric per_token = {
    "time per token, times shorter",
    [](const RunFigures& run, const RunFigures& baseline) -> std::optional<double> {
      if (run.tpot_s <= 0) return std::nullopt;  // of a single token
      return baseline.tpot_s / run.tpot_s;
    },
    [](const RunFigures& run) {
      return run.tpot_s > 0 ? seconds_text(run.tpot_s) : std::string();
    }};
constexpr Metric energy = {
    "energy per token, times less",
    [](const RunFigures& run, const RunFigures& baseline) -> std::optional<double> {
      if (!run.joules_per_token || !baseline.joules_per_token) return std::nullopt;
      return *baseline.joules_per_token / *run.joules_per_token;
    },
    [](const RunFigures& run) {
      return run.joules_per_token ? rate_text(*run.joules_per_token) + " J" : std::string();
    }};

/// What the lists of runs name, each once, in their order.
template <typename Key>
auto distinct(const std::vector<ComparedRun>& runs, const Key& key) {
  std::vector<decltype(key(runs.front()))> found;
  for (const ComparedRun& run : runs) {
    if (std::find(found.begin(), found.end(), key(run)) == found.end()) found.push_back(key(run));
  }
  return found;
}

/// A name, or a file's without its folder and, of a policy's, without its ending.
std::string short_name(const std::string& name_or_path) {
  std::string name = std::filesystem::path(name_or_path).filename().string();
  for (const std::string_view ending : {simgrid_policy_ending, native_policy_ending}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

using Column = std::pair<std::string, std::string>;  ///< model, machine
using Group = std::array<std::int64_t, 3>;           ///< batch, input and output tokens

Column column_of(const ComparedRun& run) { return {run.model, run.machine}; }
Group group_of(const ComparedRun& run) {
  return {run.workload.batch, run.workload.input_tokens, run.workload.output_tokens};
}

const RunFigures* figures_of(const std::vector<ComparedRun>& runs, const Column& column,
                             const Group& group, const std::string& policy) {
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const ComparedRun& run) {
    return column_of(run) == column && group_of(run) == group && run.policy == policy;
  });
  return found == runs.end() || !found->figures ? nullptr : &*found->figures;
}

void name_groups(const std::vector<ComparedRun>& runs, const std::vector<Group>& groups,
                 RatioGrid& grid) {
  const auto same = [&](std::size_t part) {
    return std::all_of(groups.begin(), groups.end(),
                       [&](const Group& group) { return group[part] == groups.front()[part]; });
  };
  const bool one_input = same(1);
  const bool one_output = same(2);
  grid.groups.reserve(groups.size());
  for (const auto& [batch, tokens_in, tokens_out] : groups) {
    std::string& name =
        grid.groups.emplace_back(batch == as_many_as_fit ? "max" : fmt::format("{}", batch));
    if (!one_input) name += fmt::format(" / {}", tokens_in);
    if (!one_output) name += fmt::format(" / {}", tokens_out);
  }
  std::vector<std::string> shared;
  if (one_input) shared.push_back(fmt::format("{} tokens in", runs.front().workload.input_tokens));
  if (one_output) shared.push_back(fmt::format("{} out", runs.front().workload.output_tokens));
  grid.group_label = "batch";
  if (!one_input) grid.group_label += " / tokens in";
  if (!one_output) grid.group_label += " / tokens out";
  if (!shared.empty()) grid.group_label += fmt::format(" ({})", fmt::join(shared, ", "));
}

std::vector<Metric> metrics_of(const std::vector<ComparedRun>& runs) {
  std::vector<Metric> metrics = {throughput, first_token};
  if (std::any_of(runs.begin(), runs.end(),
                  [](const ComparedRun& run) { return run.workload.output_tokens > 1; }))
    metrics.push_back(per_token);
  if (std::any_of(runs.begin(), runs.end(), [](const ComparedRun& run) {
        return run.figures && run.figures->joules_per_token;
      })) {
    metrics.push_back(energy);
  }
  return metrics;
}

RatioPlot plot_of(const std::vector<ComparedRun>& runs, const Column& column,
                  const std::vector<Group>& groups, const Metric& metric,
                  const std::vector<std::string>& policies, const std::string& baseline) {
  RatioPlot plot = {.title = fmt::format("{} on {}: {}", short_name(column.first),
                                         short_name(column.second), metric.title),
                    .ratios = {},
                    .figures = {}};
  plot.ratios.reserve(groups.size());
  for (const Group& group : groups) {
    const RunFigures* base = figures_of(runs, column, group, baseline);
    std::vector<std::optional<double>>& ratios = plot.ratios.emplace_back();
    std::vector<std::string>& figures = plot.figures.emplace_back();
    ratios.reserve(policies.size());
    for (const std::string& policy : policies) {
      const RunFigures* run = figures_of(runs, column, group, policy);
      ratios.push_back(run == nullptr || base == nullptr ? std::nullopt : metric.gain(*run, *base));
      figures.push_back(run != nullptr && base == nullptr ? metric.figure(*run) : "");
    }
  }
  return plot;
}

}  // namespace

RatioGrid compare_policies(const std::vector<ComparedRun>& runs, const std::string& baseline) {
  std::vector<std::string> policies =
      distinct(runs, [](const ComparedRun& run) { return run.policy; });
  std::erase(policies, baseline);
  const std::vector<Group> groups = distinct(runs, group_of);
  const std::vector<Column> columns = distinct(runs, column_of);
  RatioGrid grid;
  grid.baseline = short_name(baseline);
  grid.series.resize(policies.size());
  std::transform(policies.begin(), policies.end(), grid.series.begin(), short_name);
  name_groups(runs, groups, grid);
  for (const Metric& metric : metrics_of(runs)) {
    std::vector<RatioPlot>& row = grid.rows.emplace_back();
    row.reserve(columns.size());
    for (const Column& column : columns)
      row.push_back(plot_of(runs, column, groups, metric, policies, baseline));
  }
  return grid;
}

}  // namespace sluice
