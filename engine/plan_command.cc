#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>

#include "base/error.h"
#include "engine/command_line.h"
#include "engine/compute_options.h"
#include "engine/machine_costs.h"
#include "engine/output_file.h"
#include "engine/output_options.h"
#include "engine/plan_report.h"
#include "engine/planner.h"
#include "engine/policy_choice.h"
#include "engine/policy_map.h"
#include "engine/policy_run.h"
#include "engine/what_if.h"
#include "models/model.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

constexpr const char* any_policy = "auto";

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model", po::value<std::string>()->default_value("opt-30b"),
       "shape, or Hugging Face folder; a list")  //
      ("machine", po::value<std::string>()->default_value("spr-a100"),
       "profile of a machine: a known name, a .json file, or this: the one at hand, as sluice "
       "calibrate has measured it; a list")  //
      ("policy", po::value<std::string>()->default_value(any_policy),
       "name or shared object of a policy; a list; auto: the fastest of all that come with Sluice")(
          "policy-option", po::value<std::vector<std::string>>()->composing(),
          "KEY=VALUE for the policy; may be given several times")                           //
      ("batch", po::value<std::string>()->default_value("1"), "sequences at once; a list")  //
      ("input-tokens", po::value<std::string>()->default_value("512"),
       "tokens of each prompt; a list")  //
      ("output-tokens", po::value<std::int64_t>()->default_value(128),
       "tokens to generate for each sequence")  //
      ("weight-bits", po::value<double>()->default_value(16),
       "16, or 4.5: groups of 4 bits with their scales")  //
      ("explain", po::bool_switch(),
       "for a single plan: flip points, and what faster parts of the machine would change")  //
      ("map", po::value<std::string>(),
       "draw the policy's placements over batch and input length into this .svg or .png file, and "
       "in the terminal");
  declare_format(line);
}

struct Settings {
  std::vector<std::string> models;
  std::vector<std::string> machines;
  std::vector<std::string> policies;
  std::map<std::string, std::string> options;
  std::vector<std::int64_t> batches;
  std::vector<std::int64_t> input_tokens;
  std::int64_t output_tokens = 1;
  double weight_bits = 16;
  std::optional<std::string> map;
  bool explain = false;
  OutputFormat format = OutputFormat::table;

  std::size_t num_points() const {
    return models.size() * machines.size() * policies.size() * batches.size() * input_tokens.size();
  }
};

Settings read_settings(const CommandLine& line) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 24;
  Settings settings;
  settings.models = read_words(line, "model");
  settings.machines = read_words(line, "machine");
  settings.policies = read_words(line, "policy");
  settings.options = read_policy_options(line);
  settings.batches = read_list(line, "batch", 1, std::int64_t{1} << 20);
  settings.input_tokens = read_list(line, "input-tokens", 1, most_tokens);
  settings.output_tokens = in_range<std::int64_t>(line, "output-tokens", 1, most_tokens);
  settings.weight_bits = line.get<double>("weight-bits");
  if (settings.weight_bits != 16 && settings.weight_bits != 4.5)
    throw UsageError("--weight-bits {}: expected 16 or 4.5", settings.weight_bits);
  settings.format = read_format(line);
  settings.explain = line.get<bool>("explain");
  if (settings.explain && settings.num_points() > 1)
    throw UsageError("--explain is of a single plan; name one of everything");
  if (line.given("map")) {
    settings.map = line.get<std::string>("map");
    picture_format("map", *settings.map);
    if (settings.models.size() > 1 || settings.policies.size() > 1 ||
        settings.policies.front() == any_policy) {
      throw UsageError("--map draws one --policy for one --model; name one of each");
    }
    for (const char* name :
         {"batch", "input-tokens", "output-tokens", "output-format", "markdown", "csv", "json"}) {
      if (line.given(name))
        throw UsageError("--{} has no part in --map, which draws all batches and input lengths",
                         name);
    }
  }
  return settings;
}

PlanPoint as_point(const std::string& model, const MachineCosts& costs, const Workload& workload,
                   const Candidate& candidate) {
  return {.model = model,
          .machine = costs.machine,
          .policy = candidate.policy->name(),
          .workload = workload,
          .plan = candidate.plan,
          .problem = candidate.problem};
}

class Planner {
 public:
  explicit Planner(const Settings& settings) : settings_(settings) {
    for (const std::string& name : settings.policies) {
      if (name != any_policy) policies_.push_back({load(name, settings.options)});
    }
    if (!policies_.empty()) return;
    if (!settings.options.empty()) throw UsageError("--policy-option needs --policy");
    all_ = load_known_policies();
    if (all_.empty())
      throw Error("no policy was found beside the program; give one with --policy FILE");
  }

  std::vector<PlanPoint> run() {
    std::vector<PlanPoint> points;
    for (const std::string& model : settings_.models) {
      for (const std::string& machine : settings_.machines) {
        const MachineCosts costs = costs_of(machine, model);
        for (const std::int64_t tokens : settings_.input_tokens) {
          for (const std::int64_t batch : settings_.batches)
            add(model, costs, {batch, tokens, settings_.output_tokens}, points);
        }
      }
    }
    return points;
  }

  PolicyMap map(const std::string& machine) {
    const std::string& model = settings_.models.front();
    return make_policy_map(policies_.front()->policy(), *costs_of(machine, model).model, model,
                           machine);
  }

  /// What --explain adds to a plan, or, without it, that its offload does not pay.
  std::string explain(const PlanPoint& point) {
    const MachineCosts costs = costs_of(settings_.machines.front(), point.model);
    if (!settings_.explain) return slower_than_one_device(*point.plan, *costs.model);
    for (const auto* loaded : {&policies_, &all_}) {
      for (const auto& policy : *loaded) {
        if (policy->name() == point.policy)
          return "\n" + explain_plan(policy->policy(), *costs.model, point.workload);
      }
    }
    return "";
  }

 private:
  using Options = std::map<std::string, std::string>;

  static std::unique_ptr<LoadedPolicy> load(const std::string& name, const Options& options) {
    return std::make_unique<LoadedPolicy>(name, options);
  }

  /// This machine's weights have the type that it computes in.
  MachineCosts costs_of(const std::string& machine, const std::string& model) {
    const DType dtype = machine == this_machine ? default_host_use().dtype : DType::bf16;
    ModelDimensions dimensions = model_dimensions(find_model_config(model), dtype);
    if (settings_.weight_bits != 16) dimensions.weight_bits = settings_.weight_bits;
    return machines_.load(machine, dimensions, model);
  }

  void add(const std::string& model, const MachineCosts& costs, const Workload& workload,
           std::vector<PlanPoint>& points) {
    for (const auto& policy : policies_) {
      points.push_back(
          as_point(model, costs, workload, plan_with(*policy, *costs.model, workload)));
    }
    if (!policies_.empty()) return;
    std::vector<Candidate> all;
    all.reserve(all_.size());
    for (const auto& policy : all_) all.push_back(plan_with(*policy, *costs.model, workload));
    const Candidate& chosen = fastest(all);
    points.push_back(as_point(model, costs, workload, chosen));
    if (settings_.num_points() == 1)
      fmt::print(stderr, "sluice: {}\n", explain_choice(all, chosen));
  }

  const Settings& settings_;
  MachineList machines_;
  std::vector<std::unique_ptr<LoadedPolicy>> policies_;  ///< that were named
  std::vector<std::unique_ptr<LoadedPolicy>> all_;       ///< else
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
  maps.reserve(settings.machines.size());
  for (const std::string& machine : settings.machines) maps.push_back(planner.map(machine));
  write_file(*settings.map, draw_policy_maps(maps, picture_format("map", *settings.map)));
  std::cout << policy_maps_as_text(maps);
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
  Planner planner(settings);
  if (settings.map) return run_map(settings, planner);
  const std::vector<PlanPoint> points = planner.run();
  if (points.size() == 1 && !points.front().plan)
    throw Error("{} on {}: {}", points.front().model, points.front().machine,
                points.front().problem);
  if (points.size() == 1 && settings.format == OutputFormat::table) {
    std::cout << describe_plan(points.front()) << planner.explain(points.front());
    return 0;
  }
  std::cout << format_plans(settings.format, points);
  return report_failures(points) < points.size() ? 0 : 1;
}

}  // namespace sluice
