#include "engine/measure/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/units.h"
#include "engine/console/tables.h"
#include "engine/plan/what_if.h"
#include "perfmodels/measured_model.h"

namespace sluice {
namespace {

/// "1.23 s", and by how much that is more or less than what was measured.
void add_prediction(std::vector<std::string>& row, double predicted_s, double measured_s) {
  row.push_back(format_seconds(predicted_s));
  row.push_back(fmt::format("{:+.1f} %", 100 * (predicted_s / measured_s - 1)));
}

/// The two halves of split attention as their sum, which is what is predicted.
KernelTotals with_whole_attention(KernelTotals totals) {
  for (auto& phase : totals.by_phase) {
    auto& whole = phase[static_cast<std::size_t>(Sublayer::attention)];
    for (const Sublayer half : {Sublayer::qk, Sublayer::sv}) {
      auto& entry = phase[static_cast<std::size_t>(half)];
      whole.seconds += entry.seconds;
      whole.count = std::max(whole.count, entry.count);
      entry = {};
    }
  }
  return totals;
}

/// Measured, and what was predicted for one device.
struct DeviceTotals {
  std::string_view device;
  KernelTotals measured, predicted;
  std::optional<KernelTotals> at_rates;
};

void add_rows(TableRows& rows, const DeviceTotals& of, double wall_s) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    for (const SublayerProperties& properties : all_sublayers()) {
      const Sublayer sublayer = properties.sublayer;
      const KernelTotals::Entry& entry = of.measured.of(phase, sublayer);
      if (entry.count == 0) continue;
      std::vector<std::string>& row = rows.emplace_back();
      row = {std::string(to_string(phase)), std::string(to_string(sublayer)),
             std::string(of.device),        fmt::format("{}", entry.count),
             format_seconds(entry.seconds), fmt::format("{:.1f} %", 100 * entry.seconds / wall_s)};
      const double seconds = of.predicted.of(phase, sublayer).seconds;
      if (seconds <= 0) continue;
      add_prediction(row, seconds, entry.seconds);
      if (of.at_rates) add_prediction(row, of.at_rates->of(phase, sublayer).seconds, entry.seconds);
    }
  }
}

}  // namespace

std::string explain_run(const RunRecord& record, Device head_device, const MeasuredRun& run,
                        const CostModel& costs, const std::string& source) {
  const auto predict = [&](const CostModel& by, Device device) {
    return with_whole_attention(record.predict(by, device, head_device));
  };
  DeviceTotals cpu = {to_string(Device::cpu), with_whole_attention(run.cpu),
                      predict(costs, Device::cpu), std::nullopt};
  if (const auto* model = dynamic_cast<const MeasuredModel*>(&costs))
    cpu.at_rates = predict(model->at_rates(run.rates), Device::cpu);
  TableRows rows = {{"phase", "sublayer", "on", "times", "measured", "share", "predicted", "off"}};
  if (cpu.at_rates) rows.front().insert(rows.front().end(), {"at this run's rates", "off"});
  add_rows(rows, cpu, run.wall_s);
  const double accelerator_s = run.accelerator.seconds();
  if (accelerator_s > 0) {
    add_rows(rows,
             {to_string(Device::gpu), with_whole_attention(run.accelerator),
              predict(costs, Device::gpu), std::nullopt},
             run.wall_s);
  }
  const auto add_rest = [&](const char* what, double seconds) {
    rows.push_back({"", what, "", "", format_seconds(seconds),
                    fmt::format("{:.1f} %", 100 * seconds / run.wall_s)});
  };
  // Devices work beside each other, so that with two of them each has a rest of its own.
  const auto outside_s = [&](double kernels_s) { return std::max(0.0, run.wall_s - kernels_s); };
  add_rest(accelerator_s > 0 ? "outside of the CPU's kernels" : "outside of kernels",
           outside_s(run.cpu.seconds()));
  if (accelerator_s > 0) add_rest("outside of the accelerator's", outside_s(accelerator_s));
  for (std::vector<std::string>& row : rows) row.resize(rows.front().size());
  return format_table(rows) +
         fmt::format("\npredictions {}; beside this run {:.1f} GB/s, {:.3f} TFLOP/s\n", source,
                     run.rates.read_bandwidth_bytes_per_s * 1e-9,
                     run.rates.gemm_flop_per_s * 1e-12);
}

RunExplainer::RunExplainer(Runtime& runtime, DType dtype, std::uint64_t working_set_bytes,
                           PolicyRun& policy)
    : runtime_(runtime),
      policy_(policy),
      probes_(runtime, dtype, working_set_bytes),
      before_(probes_.measure()) {
  policy_.record_into(&record_);
  runtime_.reset_busy();
}

void RunExplainer::end(double wall_s) {
  policy_.record_into(nullptr);
  measured_.cpu = runtime_.kernel_totals();
  measured_.accelerator = runtime_.accelerator_totals();
  measured_.wall_s = wall_s;
  measured_.rates = mean_rates(before_, probes_.measure());
}

std::string RunExplainer::explain(const MachineCosts& costs, CheckedPolicy& policy,
                                  const Workload& workload) const {
  return explain_run(record_, policy_.head_device(), measured_, *costs.model, costs.source) + "\n" +
         explain_plan(policy, *costs.model, workload);
}

}  // namespace sluice
