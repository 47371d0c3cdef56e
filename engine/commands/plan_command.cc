#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "engine/batching/policy_run.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/point_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/machine/compute.h"
#include "engine/measure/machine_list.h"
#include "engine/plan/cpu_plan_report.h"
#include "engine/plan/plan_report.h"
#include "engine/plan/planner.h"
#include "engine/plan/points.h"
#include "engine/plan/policy_choice.h"
#include "engine/plan/policy_map.h"
#include "engine/plan/what_if.h"
#include "engine/requests/request.h"
#include "models/model.h"
#include "perfmodels/profile.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

namespace po = boost::program_options;
using Json = nlohmann::ordered_json;

void declare_options(CommandLine& line) {
  declare_points(line);
  line.options().add_options()  //
      ("explain", po::bool_switch(),
       "for a single plan: flip points, and what faster parts of the machine would change")  //
      ("map", po::value<std::string>(),
       "draw the policy's placements over batch and input length into this .svg or .png file, and "
       "in the terminal")  //
      ("cpu-plan", po::value<std::string>(),
       "for a single plan: predict how the CPU's cores compute when they are cut into groups, for "
       "prefill and for decode: interleaved (one group), static (a group for each NUMA node), auto "
       "(the fastest that is found), or a JSON file with a plan");
  declare_format(line);
}

struct Settings {
  PointLists points;
  WeightChoice weights;
  MixtureChoice mixture;
  std::optional<std::string> map;
  std::optional<std::string> cpu_plan;
  bool explain = false;
  OutputFormat format = OutputFormat::table;
};

Settings read_settings(const CommandLine& line) {
  Settings settings;
  settings.points = read_points(line);
  settings.weights = read_weight_choice(line);
  settings.mixture = read_mixture_choice(line);
  settings.format = read_format(line);
  settings.explain = line.get<bool>("explain");
  const bool tabular =
      settings.format == OutputFormat::csv || settings.format == OutputFormat::markdown;
  if (settings.explain && tabular)
    throw UsageError("--explain is told at length or with --json; leave out --csv and --markdown");
  if (settings.explain && settings.points.size() > 1)
    throw UsageError("--explain is of a single plan; name one of everything");
  if (line.given("cpu-plan")) {
    settings.cpu_plan = line.get<std::string>("cpu-plan");
    if (tabular)
      throw UsageError(
          "--cpu-plan is told at length or with --json; leave out --csv and --markdown");
    if (settings.points.size() > 1)
      throw UsageError("--cpu-plan is of a single plan; name one of everything");
    if (settings.points.machines.front() == this_machine)
      throw UsageError("--cpu-plan needs --machine with a profile; sluice tune finds plans here");
  }
  if (line.given("map")) {
    settings.map = line.get<std::string>("map");
    picture_format("map", *settings.map);
    if (settings.points.models.size() > 1 || settings.points.policies.size() > 1 ||
        settings.points.policies.front() == any_policy) {
      throw UsageError("--map draws one --policy for one --model; name one of each");
    }
    if (tabular)
      throw UsageError("--map is told in letters or with --json; leave out --csv and --markdown");
    for (const char* name : {"batch", "input-tokens", "output-tokens", "explain", "cpu-plan"}) {
      if (line.given(name))
        throw UsageError("--{} has no part in --map, which draws all batches and input lengths",
                         name);
    }
    for (const char* name : {"parameters-tier", "kv-tier"}) {
      if (line.given(name))
        throw UsageError("--{} has no part in --map, which draws weights and KV in DDR", name);
    }
  }
  return settings;
}

PlanPoint as_point(const std::string& model, const MachineCosts& costs,
                   const Candidate& candidate) {
  return {.model = model,
          .machine = costs.machine,
          .policy = candidate.policy->name(),
          .workload = candidate.workload,
          .plan = candidate.plan,
          .problem = candidate.problem,
          .running_costs = costs.running_costs};
}

class Planner {
 public:
  explicit Planner(const Settings& settings) : settings_(settings), lists_(settings.points) {
    for (const std::string& name : lists_.policies) {
      if (name == any_policy) continue;
      policies_.push_back(std::make_unique<LoadedPolicy>(name, lists_.policy_options));
      policies_.back()->policy().set_host_tiers(lists_.host_tiers);
      if (policies_.back()->has_own_scheduler()) {
        logger().warn(
            "policy {} has a scheduler of its own: the figures are for the shared one, which "
            "brings "
            "data ahead; sluice simulate runs its own",
            policies_.back()->name());
      }
    }
    if (!policies_.empty()) return;
    if (!lists_.policy_options.empty()) throw UsageError("--policy-option needs --policy");
    policies_ = load_known_policies(lists_.host_tiers);
    chooses_ = true;
  }

  std::vector<PlanPoint> run() {
    std::vector<PlanPoint> points;
    for (const std::string& model : lists_.models) {
      const ModelConfig config = find_model_config(model);
      for (const std::string& machine : lists_.machines) {
        const MachineCosts costs = costs_of(machine, model);
        for (const Workload& workload : lists_.workloads(config.max_positions)) {
          if (interrupt_flag()) throw Interrupted();
          if (std::string problem = length_problem(config, workload); problem.empty()) {
            if (settings_.cpu_plan) {
              add_by_cpu_plan(model, costs, workload, points);
            } else {
              add(model, costs, workload, points);
            }
          } else {
            points.push_back({.model = model,
                              .machine = costs.machine,
                              .policy = "",
                              .workload = workload,
                              .plan = std::nullopt,
                              .problem = std::move(problem)});
          }
        }
      }
    }
    return points;
  }

  PolicyMap map(const std::string& machine) {
    const std::string& model = lists_.models.front();
    return make_policy_map(policies_.front()->policy(), *costs_of(machine, model).model, model,
                           machine);
  }

  /// What --explain adds to a plan, or, without it, that its offload does not pay.
  std::string explain(const PlanPoint& point) {
    const MachineCosts costs = costs_of(lists_.machines.front(), point.model);
    if (!settings_.explain) return slower_than_one_device(*point.plan, *costs.model);
    return "\n" + explain_plan(policy_of(point), *costs.model, point.workload);
  }
  /// What --cpu-plan adds to a plan.
  const CpuPlanReport& cpu_plan() const { return cpu_plan_.value(); }
  Json explain_json(const PlanPoint& point) {
    const MachineCosts costs = costs_of(lists_.machines.front(), point.model);
    return explain_plan_json(policy_of(point), *costs.model, point.workload);
  }

 private:
  CheckedPolicy& policy_of(const PlanPoint& point) {
    const auto found = std::find_if(policies_.begin(), policies_.end(), [&](const auto& policy) {
      return policy->name() == point.policy;
    });
    return (*found)->policy();
  }

  /// Empty if the model has positions enough.
  static std::string length_problem(const ModelConfig& config, const Workload& workload) {
    try {
      check_length(config, workload);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  MachineCosts costs_of(const std::string& machine, const std::string& model) {
    ModelConfig config = find_model_config(model);
    settings_.mixture.cut_ffn(model, config);
    settings_.weights.use_on(model, config);
    ModelDimensions dimensions = model_dimensions(config, default_dtype);
    if (lists_.weight_bits != 16) dimensions.weight_bits = lists_.weight_bits;
    settings_.mixture.route(model, dimensions);
    MachineCosts costs = machines_.load(machine, dimensions, model);
    if (!cpu_plan_) return costs;
    return costs_by_cpu_plan(std::move(costs), load_profile(machine), cpu_plan_->plan);
  }

  /// Of a single point. How many sequences fit is the same whatever the cores do.
  void add_by_cpu_plan(const std::string& model, const MachineCosts& costs, const Workload& asked,
                       std::vector<PlanPoint>& points) {
    const Workload workload = plan_with_each(policies_, *costs.model, asked).front().workload;
    PlannedCosts planned =
        costs_by_cpu_plan(costs, lists_.machines.front(), settings_.cpu_plan, workload);
    cpu_plan_ = std::move(planned.cpu_plan);
    add(model, planned.costs, workload, points);
  }

  void add(const std::string& model, const MachineCosts& costs, const Workload& workload,
           std::vector<PlanPoint>& points) {
    const std::vector<Candidate> candidates = plan_with_each(policies_, *costs.model, workload);
    if (!chooses_) {
      for (const Candidate& each : candidates) points.push_back(as_point(model, costs, each));
      return;
    }
    const Candidate& chosen = fastest(candidates);
    points.push_back(as_point(model, costs, chosen));
    if (lists_.size() == 1) fmt::print(stderr, "sluice: {}\n", explain_choice(candidates, chosen));
  }

  const Settings& settings_;
  const PointLists& lists_;
  MachineList machines_;
  LoadedPolicies policies_;  ///< that were named, or all
  bool chooses_ = false;     ///< the fastest of all
  std::optional<CpuPlanReport> cpu_plan_;
};

/// A line on stderr for each point without a plan; says how many there are.
std::size_t report_failures(const std::vector<PlanPoint>& points) {
  std::size_t failures = 0;
  for (const PlanPoint& point : points) {
    if (point.plan) continue;
    ++failures;
    fmt::print(stderr, "sluice: {} on {}, batch {}, {} tokens in: {}\n", point.model, point.machine,
               point.workload.batch, point.workload.input_tokens, point.problem);
  }
  return failures;
}

int run_map(const Settings& settings, Planner& planner) {
  check_writable(*settings.map);
  std::vector<PolicyMap> maps;
  maps.reserve(settings.points.machines.size());
  for (const std::string& machine : settings.points.machines) maps.push_back(planner.map(machine));
  write_file(*settings.map, draw_policy_maps(maps, picture_format("map", *settings.map)));
  std::cout << (settings.format == OutputFormat::json ? policy_maps_as_json(maps)
                                                      : policy_maps_as_text(maps));
  return 0;
}

}  // namespace

int run_plan(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice plan --model SHAPE --machine PROFILE [options]",
      "Says what a policy would do with a model on a machine, and how long it takes by "
      "the cost model. Nothing is run.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  const EndsSoonAfterInterrupt ends_soon;
  Planner planner(settings);
  if (settings.map) return run_map(settings, planner);
  const std::vector<PlanPoint> points = planner.run();
  if (points.size() == 1 && !points.front().plan)
    throw Error("{} on {}: {}", points.front().model, points.front().machine,
                points.front().problem);
  if (points.size() == 1 && settings.format == OutputFormat::table) {
    std::string text = describe_plan(points.front()) + planner.explain(points.front());
    if (settings.cpu_plan) text += "\n" + describe_cpu_plan(planner.cpu_plan());
    std::cout << text;
    return 0;
  }
  if (settings.explain || settings.cpu_plan) {  // of a single point
    Json object = plan_json(points.front());
    if (settings.explain) object["explain"] = planner.explain_json(points.front());
    if (settings.cpu_plan) object["cpu_plan"] = cpu_plan_report_json(planner.cpu_plan());
    std::cout << format_objects(OutputFormat::json, Json::array({std::move(object)}));
    return 0;
  }
  std::cout << format_plans(settings.format, points);
  return report_failures(points) < points.size() ? 0 : 1;
}

}  // namespace sluice
