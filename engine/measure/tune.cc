#include "engine/measure/tune.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/json_fields.h"
#include "base/median.h"
#include "engine/measure/gain.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// Samples after which a plan may be given up.
constexpr std::size_t fewest_samples = 2;
constexpr double hopeless = 1.125;

double shortest_median(const PhaseTuning& phase) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const TunedPlan& plan : phase.plans) {
    if (plan.samples_s.size() >= fewest_samples)
      shortest = std::min(shortest, median(plan.samples_s));
  }
  return shortest;
}

Json as_json(const PhaseTuning& phase) {
  Json plans = Json::array();
  for (const TunedPlan& tuned : phase.plans) {
    Json& plan = plans.emplace_back(as_json(tuned.plan));
    plan["samples_s"] = tuned.samples_s;
  }
  return {{"rows", phase.rows}, {"context", phase.context}, {"plans", std::move(plans)}};
}

class TuningReader {
 public:
  TuningReader(std::string_view where, const Topology& topology)
      : fields_(std::string(where)), topology_(topology) {}

  CpuTuning read(const Json& json) const {
    if (fields_.at(json, "topology") != topology_.shape())
      throw Error("{}: measured on another machine: its topology is not this one's ({})",
                  fields_.where(), topology_.summary());
    return {.model = fields_.text(json, "model"),
            .rounds = static_cast<int>(fields_.number(json, "rounds", 1, 1000)),
            .prefill = phase(fields_.at(json, "prefill"), "prefill"),
            .decode = phase(fields_.at(json, "decode"), "decode")};
  }

 private:
  PhaseTuning phase(const Json& json, const std::string& name) const {
    if (!json.is_object())
      throw Error("{}: {} is {}, expected an object", fields_.where(), name, describe(json));
    PhaseTuning phase{.rows = fields_.number(json, "rows", 1, most_tokens),
                      .context = fields_.number(json, "context", 0, most_tokens),
                      .plans = {}};
    const Json& plans = fields_.at(json, "plans");
    if (!plans.is_array() || plans.empty())
      throw Error("{}: {}.plans is {}, expected a list of plans", fields_.where(), name,
                  describe(plans));
    for (const Json& plan : plans) {
      TunedPlan& tuned = phase.plans.emplace_back();
      tuned.plan = read_cpu_phase_plan(plan, fields_.where(), name, topology_);
      const Json& samples = fields_.at(plan, "samples_s");
      if (!samples.is_array())
        throw Error("{}: {}.samples_s is {}, expected a list", fields_.where(), name,
                    describe(samples));
      for (const Json& sample : samples) {
        if (!sample.is_number() || !(sample.get<double>() > 0))
          throw Error("{}: {}.samples_s has {}, expected seconds", fields_.where(), name,
                      describe(sample));
        tuned.samples_s.push_back(sample.get<double>());
      }
    }
    return phase;
  }

  static constexpr std::int64_t most_tokens = std::int64_t{1} << 32;
  JsonFields fields_;
  const Topology& topology_;
};

}  // namespace

bool PhaseTuning::is_out(const TunedPlan& plan) const {
  if (plan.samples_s.size() < fewest_samples) return false;
  return *std::min_element(plan.samples_s.begin(), plan.samples_s.end()) >
         hopeless * shortest_median(*this);
}

bool PhaseTuning::is_complete(int rounds) const {
  return std::all_of(plans.begin(), plans.end(), [&](const TunedPlan& plan) {
    return std::ssize(plan.samples_s) >= rounds || is_out(plan);
  });
}

CpuPhasePlan PhaseTuning::chosen() const {
  std::vector<const TunedPlan*> left;
  for (const TunedPlan& plan : plans) {
    if (!plan.samples_s.empty() && !is_out(plan)) left.push_back(&plan);
  }
  if (left.empty()) throw Error("no CPU plan was measured");
  const auto simplicity = [](const TunedPlan* tuned) {
    return std::pair(tuned->plan.groups.size(), tuned->plan.num_cores());
  };
  std::stable_sort(left.begin(), left.end(), [&](const TunedPlan* a, const TunedPlan* b) {
    return simplicity(a) < simplicity(b);
  });
  const TunedPlan* best = left.front();
  for (std::size_t step = 0; step < left.size(); ++step) {  // no circle is longer
    const TunedPlan* next = nullptr;
    double most = 1;
    for (const TunedPlan* other : left) {
      const Gain gain = Gain::over(best->samples_s, other->samples_s);
      if (!gain.is_sure() || gain.median <= most) continue;
      next = other;
      most = gain.median;
    }
    if (next == nullptr) break;
    best = next;
  }
  CpuPhasePlan plan = best->plan;
  plan.measured_s = median(best->samples_s);
  return plan;
}

void run_tuning(CpuTuning& tuning, const TuningSteps& steps) {
  const double total =
      static_cast<double>(tuning.prefill.plans.size() + tuning.decode.plans.size()) * tuning.rounds;
  double done = 0;
  for (int round = 0; round < tuning.rounds; ++round) {
    for (const TunedPhase of : {TunedPhase::prefill, TunedPhase::decode}) {
      PhaseTuning& phase = of == TunedPhase::prefill ? tuning.prefill : tuning.decode;
      const std::size_t count = phase.plans.size();
      bool has_measured = false;
      for (std::size_t i = 0; i < count; ++i) {
        TunedPlan& plan = phase.plans[round % 2 == 0 ? i : count - 1 - i];
        steps.progress(done++, total);
        if (std::ssize(plan.samples_s) > round || phase.is_out(plan)) continue;
        plan.samples_s.push_back(steps.measure(of, plan.plan));
        has_measured = true;
      }
      if (has_measured) steps.save();
    }
  }
}

nlohmann::json as_json(const CpuTuning& tuning, const Topology& topology) {
  Json json = {{"model", tuning.model},
               {"rounds", tuning.rounds},
               {"prefill", as_json(tuning.prefill)},
               {"decode", as_json(tuning.decode)},
               {"topology", topology.shape()}};
  if (tuning.is_complete()) {
    json["cpu_plan"] = as_json(tuning.plan(), topology);
  } else if (tuning.previous) {
    json["cpu_plan"] = as_json(*tuning.previous, topology);
  }
  return json;
}

CpuTuning read_cpu_tuning(const nlohmann::json& json, std::string_view where,
                          const Topology& topology) {
  return TuningReader(where, topology).read(json);
}

}  // namespace sluice
