#include "engine/measure/bench_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/median.h"
#include "base/units.h"

namespace sluice {
namespace {

using Rows = TableRows;
using Json = nlohmann::ordered_json;

/// Of all probes of a run.
struct RateRange {
  double least;
  double middle;
  double most;
};

template <typename Rate>
RateRange rate_range(const std::vector<BenchResult>& results, const Rate& rate) {
  std::vector<double> values;
  for (const BenchResult& result : results) {
    for (const BenchSample& sample : result.samples) {
      for (const BenchSlice& slice : sample.slices) values.push_back(rate(slice.rates));
    }
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return {*least, median(values), *most};
}

RateRange bandwidth_range(const std::vector<BenchResult>& results) {
  return rate_range(results, [](const MachineRates& r) { return r.read_bandwidth_bytes_per_s; });
}

RateRange gemm_range(const std::vector<BenchResult>& results) {
  return rate_range(results, [](const MachineRates& r) { return r.gemm_flop_per_s; });
}

Json json_of(const BenchContext& context, const BenchResult& result) {
  const BenchSummary summary = summarise(result);
  const MeanDeviation rate = mean_deviation(summary.tokens_per_s);
  Json json;
  json["model"] = context.model;
  json["weight_bytes"] = context.weight_bytes;
  json["weights"] = context.weights;
  json["head_weights"] = context.head_weights;
  json["weight_bits"] = context.weight_bits;
  json["dtype"] = to_string(context.dtype);
  json["backend"] = context.backend;
  json["policy"] = context.policy;
  json["threads"] = context.threads;
  json["cpu_plan"] = context.cpu_plan;
  json["tuned_gemm_shapes"] = context.tuned_gemm_shapes;
  json["load_s"] = context.load_s;
  json["load_bytes_per_s"] = static_cast<double>(context.weight_bytes) / context.load_s;
  json["test"] = result.test.name();
  json["batch"] = result.test.batch;
  json["depth"] = result.test.depth;
  json["repetitions"] = result.samples.size();
  if (!result.routing.empty()) {
    json["experts"] = context.experts;
    json["experts_per_token"] = context.experts_per_token;
    json["experts_touched"] = result.routing.mean_touched();
    json["expert_bytes_per_token"] = context.expert_bytes *
                                     static_cast<double>(result.routing.touched()) /
                                     static_cast<double>(result.routing.rows());
  }
  json["tokens_per_s"] = rate.mean;
  json["tokens_per_s_stddev"] = rate.deviation;
  json["tokens_per_s_median"] = median(summary.tokens_per_s);
  const bool on_cpu = !context.device;
  const auto of_cpu = [&](Json value) { return on_cpu ? std::move(value) : Json(); };
  json["limit_share"] = of_cpu(median(summary.limit_share));
  json["limit_share_stddev"] = of_cpu(mean_deviation(summary.limit_share).deviation);
  json["limit"] = of_cpu(to_string(summary.bound));
  json["overhead_us_per_iteration"] = of_cpu(summary.overhead_us_per_iteration);
  json["tokens_per_s_all"] = summary.tokens_per_s;
  json["limit_share_all"] = of_cpu(summary.limit_share);
  if (on_cpu) return json;
  const double to_device = median(summary.to_device_bytes_per_s);
  json["resident_layers"] = context.device->resident_layers;
  json["to_device_bytes_per_s"] = to_device;
  json["copy_bytes_per_s"] =
      context.device->copy_bytes_per_s ? Json(*context.device->copy_bytes_per_s) : Json();
  json["cuda_graph_launches"] = context.device->graphs.launched;
  return json;
}

std::string count_with(double value, double deviation) {
  const int digits = value >= 100 ? 1 : 2;
  return fmt::format("{:.{}f} ± {:.{}f}", value, digits, deviation, digits);
}

/// Share of the limit, and what sets it; with an accelerator, the rate of what was moved to it, and
/// its share of the rate of a copy.
std::pair<std::string, std::string> share_cells(const BenchContext& context,
                                                const BenchSummary& summary) {
  if (!context.device)
    return {fmt::format("{:.2f}", median(summary.limit_share)),
            std::string(to_string(summary.bound))};
  const double to_device = median(summary.to_device_bytes_per_s);
  const std::optional<double>& copy = context.device->copy_bytes_per_s;
  return {fmt::format("{:.2f} GB/s", to_device * 1e-9),
          copy ? fmt::format("{:.2f}", to_device / *copy) : "-"};
}

Rows bench_rows(const BenchContext& context, const std::vector<BenchResult>& results) {
  Rows rows = {{"model", "size", "dtype", "backend", "policy", "threads", "test", "batch", "depth",
                "tokens/s", context.device ? "to device" : "share of limit",
                context.device ? "share of copy" : "bound by", "overhead"}};
  for (const BenchResult& result : results) {
    const BenchSummary summary = summarise(result);
    const MeanDeviation rate = mean_deviation(summary.tokens_per_s);
    const auto [share, bound] = share_cells(context, summary);
    rows.push_back(
        {context.model, format_bytes(context.weight_bytes), std::string(to_string(context.dtype)),
         context.backend, context.policy, fmt::format("{}", context.threads), result.test.name(),
         fmt::format("{}", result.test.batch), fmt::format("{}", result.test.depth),
         count_with(rate.mean, rate.deviation), share, bound,
         !context.device ? fmt::format("{:.0f} us", summary.overhead_us_per_iteration) : "-"});
  }
  return rows;
}

std::string probe_line(const BenchContext& context, const std::vector<BenchResult>& results) {
  const RateRange bandwidth = bandwidth_range(results);
  const RateRange gemm = gemm_range(results);
  return fmt::format(
      "probed around the repetitions: memory reads at {:.1f} to {:.1f} GB/s (median {:.1f}), {} "
      "GEMMs at {:.0f} to {:.0f} GFLOP/s (median {:.0f})\n",
      bandwidth.least * 1e-9, bandwidth.most * 1e-9, bandwidth.middle * 1e-9,
      to_string(context.dtype), gemm.least * 1e-9, gemm.most * 1e-9, gemm.middle * 1e-9);
}

}  // namespace

MeanDeviation mean_deviation(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() < 2) return {.mean = mean, .deviation = 0};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean, .deviation = std::sqrt(squares / (count - 1))};
}

BenchSummary summarise(const BenchResult& result) {
  BenchSummary summary;
  TimeLimit sum;
  std::vector<double> overheads;
  for (const BenchSample& sample : result.samples) {
    TimeLimit limit;
    for (const BenchSlice& slice : sample.slices) {
      for (std::size_t i = slice.first_iteration; i < slice.end_iteration; ++i) {
        const TimeLimit one = time_limit(result.work[i], slice.rates);
        limit.bandwidth_s += one.bandwidth_s;
        limit.compute_s += one.compute_s;
      }
    }
    sum.bandwidth_s += limit.bandwidth_s;
    sum.compute_s += limit.compute_s;
    const double seconds = sample.seconds();
    summary.tokens_per_s.push_back(static_cast<double>(result.test.total_tokens()) / seconds);
    summary.limit_share.push_back(limit.total_s() / seconds);
    std::uint64_t to_device_bytes = 0;
    for (const BenchSlice& slice : sample.slices) to_device_bytes += slice.to_device_bytes;
    summary.to_device_bytes_per_s.push_back(static_cast<double>(to_device_bytes) / seconds);
    overheads.push_back((seconds - sample.busy_s()) * 1e6 /
                        static_cast<double>(result.work.size()));
  }
  summary.bound = sum.bound();
  summary.overhead_us_per_iteration = median(overheads);
  return summary;
}

std::string format_bench(OutputFormat format, const BenchContext& context,
                         const std::vector<BenchResult>& results) {
  if (format == OutputFormat::table || format == OutputFormat::markdown) {
    const Rows rows = bench_rows(context, results);
    return (format == OutputFormat::table ? format_table(rows) : format_markdown(rows)) + "\n" +
           probe_line(context, results) +
           (context.cut_text.empty() ? "" : fmt::format("CPU plan: {}\n", context.cut_text)) +
           fmt::format("loaded and packed in {:.2f} s, {:.2f} GB/s; {}\n", context.load_s,
                       static_cast<double>(context.weight_bytes) * 1e-9 / context.load_s,
                       context.policy_reason);
  }
  Json objects = Json::array();
  for (const BenchResult& result : results) {
    Json object = json_of(context, result);
    object["read_bandwidth_bytes_per_s"] = bandwidth_range(results).middle;
    object["gemm_flop_per_s"] = gemm_range(results).middle;
    object["gemm_bf16_flop_per_s"] =
        context.gemm_bf16_flop_per_s.value_or(gemm_range(results).middle);
    if (format == OutputFormat::csv) object.erase("cpu_plan");  // no single value
    objects.push_back(std::move(object));
  }
  return format_objects(format, objects);
}

}  // namespace sluice
