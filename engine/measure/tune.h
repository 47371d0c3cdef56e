#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_plan.h"
#include "base/topology.h"
#include "perfmodels/cpu_plan_cost.h"

namespace sluice {

/// A plan that runs for real, and the seconds of an iteration by it, one a round.
struct TunedPlan {
  CpuPhasePlan plan;
  std::vector<double> samples_s = {};
};

/// The plans of one phase, as they are compared.
struct PhaseTuning {
  std::int64_t rows = 1;  ///< of an iteration
  std::int64_t context = 0;
  std::vector<TunedPlan> plans = {};  ///< in the order of a round

  /// Whether two rounds or more have shown that a plan cannot be the fastest: its shortest sample
  /// is an eighth longer than the shortest median.
  bool is_out(const TunedPlan& plan) const;
  /// Whether each plan that is not out has had so many rounds.
  bool is_complete(int rounds) const;
  /// The simplest plan, with measured_s, that none is surely faster than (Gain): the one with the
  /// fewest groups, then the fewest cores, since what measures alike differs by chance. Throws
  /// Error where nothing was measured.
  CpuPhasePlan chosen() const;
};

/// Plans for both phases of a model on this machine, finished or not (Sandwich section 5.3: the
/// best by the cost model run for real).
struct CpuTuning {
  std::string model;
  int rounds = 5;
  PhaseTuning prefill = {};
  PhaseTuning decode = {};
  std::optional<CpuPlan> previous = std::nullopt;  ///< what holds until it is complete

  bool is_complete() const { return prefill.is_complete(rounds) && decode.is_complete(rounds); }
  CpuPlan plan() const { return {.prefill = prefill.chosen(), .decode = decode.chosen()}; }
};

/// The phases that are measured, in this order.
enum class TunedPhase : std::uint8_t { prefill, decode };

struct TuningSteps {
  /// Seconds of an iteration by a plan.
  std::function<double(TunedPhase, const CpuPhasePlan&)> measure;
  std::function<void(double done, double total)> progress = [](double, double) {};
  /// After each round of a phase.
  std::function<void()> save = [] {};
};
/// Measures what is missing: every plan once, then every plan again in the opposite order, so that
/// a machine that drifts does so for all of them.
void run_tuning(CpuTuning& tuning, const TuningSteps& steps);

/// {"model", "rounds", "prefill": {"rows", "context", "plans": [{"groups", ..., "samples_s"}]},
/// "decode", "topology"} and "cpu_plan": its own once it is complete, else the previous one, if
/// there was one.
nlohmann::json as_json(const CpuTuning& tuning, const Topology& topology);
/// Reads that. `where` names it in messages. Throws Error, in one line, where a field is missing or
/// of another kind, and where it is another machine's.
CpuTuning read_cpu_tuning(const nlohmann::json& json, std::string_view where,
                          const Topology& topology);

}  // namespace sluice
