#include "engine/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "engine/tables.h"
#include "engine/what_if.h"
#include "perfmodels/measured_model.h"

namespace sluice {
namespace {

std::string time_text(double seconds) {
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.2f} ms", seconds * 1e3);
}

/// "1.23 s", and by how much that is more or less than what was measured.
void add_prediction(std::vector<std::string>& row, double predicted_s, double measured_s) {
  row.push_back(time_text(predicted_s));
  row.push_back(fmt::format("{:+.1f} %", 100 * (predicted_s / measured_s - 1)));
}

constexpr std::array all_sublayers = {Sublayer::embedding,
                                      Sublayer::qkv,
                                      Sublayer::attention,
                                      Sublayer::qk,
                                      Sublayer::sv,
                                      Sublayer::kv_store,
                                      Sublayer::attention_join,
                                      Sublayer::select_rows,
                                      Sublayer::out_proj,
                                      Sublayer::fc1,
                                      Sublayer::fc2,
                                      Sublayer::lm_head,
                                      Sublayer::sampling};

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

}  // namespace

std::string explain_run(const RunRecord& record, const RunFigures& figures, const CostModel& costs,
                        const std::string& source) {
  const KernelTotals measured = with_whole_attention(figures.measured);
  const KernelTotals predicted = with_whole_attention(record.predict(costs));
  std::optional<KernelTotals> at_rates;
  if (const auto* model = dynamic_cast<const MeasuredModel*>(&costs))
    at_rates = with_whole_attention(record.predict(model->at_rates(figures.rates)));
  TableRows rows = {{"phase", "sublayer", "times", "measured", "share", "predicted", "off"}};
  if (at_rates) rows.front().insert(rows.front().end(), {"at this run's rates", "off"});
  double kernels_s = 0;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    for (const Sublayer sublayer : all_sublayers) {
      const KernelTotals::Entry& entry = measured.of(phase, sublayer);
      if (entry.count == 0) continue;
      kernels_s += entry.seconds;
      std::vector<std::string>& row = rows.emplace_back();
      row = {std::string(to_string(phase)), std::string(to_string(sublayer)),
             fmt::format("{}", entry.count), time_text(entry.seconds),
             fmt::format("{:.1f} %", 100 * entry.seconds / figures.wall_s)};
      const double seconds = predicted.of(phase, sublayer).seconds;
      if (seconds <= 0) continue;
      add_prediction(row, seconds, entry.seconds);
      if (at_rates) add_prediction(row, at_rates->of(phase, sublayer).seconds, entry.seconds);
    }
  }
  const double outside_s = std::max(0.0, figures.wall_s - kernels_s);
  rows.push_back({"", "outside of kernels", "", time_text(outside_s),
                  fmt::format("{:.1f} %", 100 * outside_s / figures.wall_s)});
  for (std::vector<std::string>& row : rows) row.resize(rows.front().size());
  return format_table(rows) +
         fmt::format("\npredictions {}; beside this run {:.1f} GB/s, {:.3f} TFLOP/s\n", source,
                     figures.rates.read_bandwidth_bytes_per_s * 1e-9,
                     figures.rates.gemm_flop_per_s * 1e-12);
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
  figures_.measured = runtime_.kernel_totals();
  figures_.wall_s = wall_s;
  figures_.rates = mean_rates(before_, probes_.measure());
}

std::string RunExplainer::explain(const MachineCosts& costs, CheckedPolicy& policy,
                                  const Workload& workload) const {
  return explain_run(record_, figures_, *costs.model, costs.source) + "\n" +
         explain_plan(policy, *costs.model, workload);
}

}  // namespace sluice
