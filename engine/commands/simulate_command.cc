#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/units.h"
#include "engine/batching/policy_run.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/point_options.h"
#include "engine/commands/options/simulated_host_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/simulator.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "engine/plan/comparison.h"
#include "engine/plan/cpu_plan_report.h"
#include "engine/plan/plan_report.h"
#include "engine/plan/points.h"
#include "engine/plan/policy_choice.h"
#include "engine/plan/what_if.h"
#include "engine/trace/trace_session.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

/// One point.
struct Job {
  std::string model;
  std::string machine;
  std::string policy;
  Workload asked;        ///< maybe for as many sequences as fit
  Workload workload;     ///< what runs
  std::string platform;  ///< the machine, as the simulator knows it
  Json result;
  std::string problem;  ///< instead of a result
};

class Simulations {
 public:
  /// `trace`: the folder for a trace, or empty.
  Simulations(const PointLists& lists, WeightChoice weights, MixtureChoice mixture,
              const SimulatedHost& host, std::string trace)
      : lists_(lists),
        weights_(weights),
        mixture_(std::move(mixture)),
        host_(host),
        trace_(std::move(trace)) {
    if (lists.policies.front() == any_policy && !lists.policy_options.empty())
      throw UsageError("--policy-option needs --policy");
    const EndsSoonAfterInterrupt ends_soon([this] { program_.remove_folder(); });
    // A wrong one is no point that cannot be.
    for (const std::string& policy : lists.policies) {
      if (policy != any_policy) load(policy);
    }
    for (const std::string& model : lists.models) {
      for (const std::string& machine : lists.machines) add(model, machine);
    }
  }

  /// All of them, as many at once as there are cores.
  std::vector<Job>& run() {
    run_jobs(jobs_.size(), "simulating", [this](std::size_t i) { run(jobs_[i]); });
    return jobs_;
  }

 private:
  void add(const std::string& model, const std::string& machine) {
    ModelConfig config = find_model_config(model);
    mixture_.cut_ffn(model, config);
    weights_.use_on(model, config);
    ModelDimensions dimensions = model_dimensions(config, default_dtype);
    if (lists_.weight_bits != 16) dimensions.weight_bits = lists_.weight_bits;
    mixture_.route(model, dimensions);
    const MachineCosts whole = simulated_costs(machine, dimensions, model, host_);
    say_if_carried(whole, model);
    const std::string platform = program_.add_machine(*whole.model);
    for (const Workload& workload : lists_.workloads(config.max_positions)) {
      const MachineCosts costs = by_cpu_plan(whole, machine, workload);
      for (const std::string& policy : lists_.policies) {
        Job job = {model, machine, policy, workload, workload, platform, {}, ""};
        if (policy == any_policy) {
          const Candidate fastest = fastest_plan(*costs.model, workload);
          job.policy = fastest.policy->name();
          job.workload = fastest.workload;
        } else {
          if (workload.batch == as_many_as_fit || lists_.size() == 1)
            job.workload = asked_for(policy, *costs.model, workload).workload;
          job.policy = simulated_policy(policy);
        }
        jobs_.push_back(std::move(job));
      }
    }
  }

  /// The machine's costs while its cores compute as --cpu-plan says.
  MachineCosts by_cpu_plan(const MachineCosts& whole, const std::string& machine,
                           const Workload& workload) const {
    if (host_.cpu_plan && workload.batch == as_many_as_fit)
      throw UsageError(
          "--cpu-plan goes by how many sequences there are; name a number with --batch");
    return costs_by_cpu_plan(whole, machine, host_.cpu_plan, workload).costs;
  }

  void load(const std::string& policy) {
    std::unique_ptr<LoadedPolicy>& loaded = named_[policy];
    if (loaded) return;
    loaded = std::make_unique<LoadedPolicy>(policy, lists_.policy_options);
    loaded->policy().set_host_tiers(lists_.host_tiers);
  }

  /// The plan of one that is loaded; of a single point that does not pay, says so.
  Candidate asked_for(const std::string& policy, const CostModel& costs, const Workload& workload) {
    Candidate candidate = plan_with(*named_.at(policy), costs, workload);
    if (lists_.size() == 1 && candidate.plan)
      fmt::print(stderr, "{}", slower_than_one_device(*candidate.plan, costs));
    return candidate;
  }

  Candidate fastest_plan(const CostModel& costs, const Workload& workload) {
    if (known_.empty()) known_ = load_known_policies(lists_.host_tiers);
    const std::vector<Candidate> candidates = plan_with_each(known_, costs, workload);
    const Candidate& chosen = fastest(candidates);
    if (lists_.size() == 1) fmt::print(stderr, "sluice: {}\n", explain_choice(candidates, chosen));
    return chosen;
  }

  void run(Job& job) const {
    std::vector<std::string> arguments = {"--log=root.thresh:error",  // SimGrid's own option
                                          "--model",
                                          job.model,
                                          "--machine",
                                          job.machine,
                                          "--policy",
                                          job.policy,
                                          "--batch",
                                          fmt::format("{}", job.workload.batch),
                                          "--input-tokens",
                                          fmt::format("{}", job.workload.input_tokens),
                                          "--output-tokens",
                                          fmt::format("{}", job.workload.output_tokens),
                                          "--weight-bits",
                                          fmt::format("{}", lists_.weight_bits)};
    for (const auto& [key, value] : lists_.policy_options) {
      arguments.emplace_back("--policy-option");
      arguments.push_back(fmt::format("{}={}", key, value));
    }
    for (const std::vector<std::string>& more :
         {weights_.arguments(), mixture_.arguments(), arguments_of(lists_.host_tiers),
          arguments_of(host_)})
      arguments.insert(arguments.end(), more.begin(), more.end());
    if (!trace_.empty()) arguments.insert(arguments.end(), {"--trace", trace_});
    const ChildResult child = program_.run(arguments, job.platform);
    job.result = child.exit_code == 0 ? Json::parse(child.out, nullptr, false) : Json();
    if (job.result.is_object()) {
      fmt::print(stderr, "{}", child.err);  // where the trace is
      return;
    }
    job.problem = SimulatorProgram::problem_of(child);
  }

  const PointLists& lists_;
  WeightChoice weights_;
  MixtureChoice mixture_;
  SimulatedHost host_;
  std::string trace_;
  SimulatorProgram program_;
  std::map<std::string, std::unique_ptr<LoadedPolicy>> named_;  ///< whose plans were asked
  LoadedPolicies known_;
  std::vector<Job> jobs_;
};

std::string percent(const Json& share) {
  return fmt::format("{:.0f} %", 100 * share.get<double>());
}

std::string bytes_text(const Json& bytes) {
  return format_bytes(static_cast<std::uint64_t>(bytes.get<double>()));
}

/// One point at length.
std::string describe(const Json& result) {
  std::string text = fmt::format(
      "{} on {} with {}: batch {}, {} tokens in, {} out; simulated\n\n",
      result["model"].get<std::string>(), result["machine"].get<std::string>(),
      result["policy"].get<std::string>(), result["batch"].get<std::int64_t>(),
      result["input_tokens"].get<std::int64_t>(), result["output_tokens"].get<std::int64_t>());
  for (const char* phase : {"prefill", "decode"}) {
    const Json& its = result[phase];
    text += fmt::format("{:8}{} x {}, placement {}\n", phase, its["iterations"].get<double>(),
                        seconds_text(its["iteration_s"].get<double>()),
                        its["placement"].get<std::string>());
  }
  if (result.contains("cpu_plan")) {
    std::vector<std::string> phases;
    for (const char* phase : {"prefill", "decode"}) {
      const Json& plan = result["cpu_plan"][phase];
      CpuPhasePlan counted;
      for (const Json& group : plan["groups"])
        counted.groups.push_back({.cores = group["cores"].get<std::vector<int>>()});
      counted.left_out = plan["left_out"].get<std::vector<int>>();
      phases.push_back(fmt::format("{} {}", phase, summary_of(counted)));
    }
    text += fmt::format("CPU plan {}\n", fmt::join(phases, "; "));
  }
  text += fmt::format("\ntime to first token {}, per token {}, {} tokens/s, latency {}\n",
                      seconds_text(result["ttft_s"].get<double>()),
                      seconds_text(result["tpot_s"].get<double>()),
                      rate_text(result["tokens_per_s"].get<double>()),
                      seconds_text(result["latency_s"].get<double>()));
  text += running_costs_text(result);
  text += fmt::format("plan's lower bound {} ({}), {} of it reached; plan's estimate {}\n",
                      seconds_text(result["lower_bound_s"].get<double>()),
                      result["binding_resource"].get<std::string>(),
                      percent(result["lower_bound_share"]),
                      seconds_text(result["plan_latency_s"].get<double>()));
  TableRows rows = {{"part", "busy", "moved"}};
  for (const auto& [part, share] : result["busy_share"].items()) {
    const Json& moved = result["bytes_moved"];
    rows.push_back({part, percent(share), moved.contains(part) ? bytes_text(moved[part]) : ""});
  }
  text += "\n" + format_table(rows);
  text += fmt::format("\nthe link to the GPU works {} beside computation, at least\n",
                      seconds_text(result["overlap_s"].get<double>()));
  std::vector<std::string> peaks;
  for (const auto& [tier, bytes] : result["bytes"].items()) {
    if (bytes.get<double>() > 0) peaks.push_back(fmt::format("{} {}", tier, bytes_text(bytes)));
  }
  text += fmt::format("most memory at a time: {}\n", fmt::join(peaks, ", "));
  if (!result["fits"].get<bool>())
    text += fmt::format("this machine is too small, and the figures are for a larger one: {}\n",
                        result["shortage"].get<std::string>());
  return text + fmt::format("{} tasks, {} of the simulated machine's time in {} of this one's\n",
                            result["tasks"].get<std::int64_t>(),
                            seconds_text(result["simulated_s"].get<double>()),
                            seconds_text(result["wall_s"].get<double>()));
}

/// A figure that may not be known.
std::string known_text(const Json& figure) {
  return figure.is_number() ? rate_text(figure.get<double>()) : "-";
}

TableRows rows_of(const std::vector<Job>& jobs) {
  TableRows rows = {{"batch", "input", "output", "model", "machine", "policy", "TTFT", "per token",
                     "tokens/s", "latency", "of the bound", "J/token", "$/M tokens", "note"}};
  for (const Job& job : jobs) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("{}", job.workload.batch),
           fmt::format("{}", job.workload.input_tokens),
           fmt::format("{}", job.workload.output_tokens),
           job.model,
           job.machine,
           job.policy};
    if (!job.problem.empty()) {
      row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-", job.problem});
      continue;
    }
    row.insert(
        row.end(),
        {seconds_text(job.result["ttft_s"].get<double>()),
         seconds_text(job.result["tpot_s"].get<double>()),
         rate_text(job.result["tokens_per_s"].get<double>()),
         seconds_text(job.result["latency_s"].get<double>()),
         percent(job.result["lower_bound_share"]), known_text(job.result["joules_per_token"]),
         known_text(job.result["usd_per_million_tokens"]), job.result.value("shortage", "")});
  }
  return rows;
}

/// What is asked for and what came of it, in the keys of the JSON.
Json json_of(const Job& job) {
  if (job.problem.empty()) return job.result;
  return plan_json({.model = job.model,
                    .machine = job.machine,
                    .policy = job.policy,
                    .workload = job.workload,
                    .plan = std::nullopt,
                    .problem = job.problem,
                    .running_costs = {}});
}

/// The numbers of one line of CSV.
Json flat_json_of(const Job& job) {
  const Json full = json_of(job);
  Json flat;
  for (const char* key :
       {"model", "machine", "policy", "batch", "input_tokens", "output_tokens", "ttft_s", "tpot_s",
        "latency_s", "tokens_per_s", "lower_bound_s", "lower_bound_share", "plan_latency_s",
        "joules_per_token", "usd_per_million_tokens", "overlap_s", "tasks", "wall_s"})
    flat[key] = full.contains(key) ? full[key] : Json();
  for (const BusyTimes::Part& each : BusyTimes{}.parts()) {
    const std::string part(each.first);
    std::string name = part;
    std::replace(name.begin(), name.end(), ' ', '_');
    flat[name + "_busy_share"] = full.contains("busy_share") ? full["busy_share"][part] : Json();
  }
  flat["problem"] = job.problem.empty() ? job.result.value("shortage", "") : job.problem;
  return flat;
}

std::string format_jobs(OutputFormat format, const std::vector<Job>& jobs) {
  if (format == OutputFormat::table) return format_table(rows_of(jobs));
  if (format == OutputFormat::markdown) return format_markdown(rows_of(jobs));
  Json objects = Json::array();
  for (const Job& job : jobs)
    objects.push_back(format == OutputFormat::json ? json_of(job) : flat_json_of(job));
  return format_objects(format, objects);
}

/// The picture that --plot asks for.
struct PlotSettings {
  std::string path;
  std::string baseline;
};

namespace po = boost::program_options;

void declare_plot(CommandLine& line) {
  line.options().add_options()  //
      ("plot", po::value<std::string>(),
       "draw how much better each policy is than --baseline into this .svg or .png file")(
          "baseline", po::value<std::string>(), "the policy that --plot compares the others with");
}

std::optional<PlotSettings> read_plot(const CommandLine& line, const PointLists& lists) {
  if (!line.given("plot")) {
    if (line.given("baseline")) throw UsageError("--baseline needs --plot");
    return std::nullopt;
  }
  PlotSettings plot = {line.get<std::string>("plot"), ""};
  picture_format("plot", plot.path);
  const std::vector<std::string>& policies = lists.policies;
  if (policies.size() < 2 ||
      std::find(policies.begin(), policies.end(), any_policy) != policies.end())
    throw UsageError(
        "--plot compares policies; name two or more with --policy, and one of them "
        "with --baseline");
  if (!line.given("baseline"))
    throw UsageError("--plot needs --baseline: one of {}", fmt::join(policies, ", "));
  plot.baseline = line.get<std::string>("baseline");
  if (std::find(policies.begin(), policies.end(), plot.baseline) == policies.end()) {
    throw UsageError("--baseline {}: expected one of --policy, which are {}", plot.baseline,
                     fmt::join(policies, ", "));
  }
  check_writable(plot.path);
  return plot;
}

void draw(const PlotSettings& plot, const std::vector<Job>& jobs) {
  std::vector<ComparedRun> runs;
  runs.reserve(jobs.size());
  for (const Job& job : jobs) {
    ComparedRun& run =
        runs.emplace_back(ComparedRun{job.model, job.machine, job.policy, job.asked, std::nullopt});
    if (!job.problem.empty()) continue;
    run.figures = {.tokens_per_s = job.result["tokens_per_s"],
                   .ttft_s = job.result["ttft_s"],
                   .tpot_s = job.result["tpot_s"],
                   .joules_per_token = std::nullopt};
    const Json& energy = job.result["joules_per_token"];
    if (energy.is_number()) run.figures->joules_per_token = energy.get<double>();
  }
  write_file(plot.path, draw_ratios(compare_policies(runs, simulated_policy(plot.baseline)),
                                    picture_format("plot", plot.path)));
}

}  // namespace

int run_simulate(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice simulate --model SHAPE --machine PROFILE [options]",
      "Runs the engine's task graphs, policies and schedulers on a simulated machine, with times "
      "from the cost model. No kernel runs, no weight is needed.");
  declare_points(line);
  declare_simulated_host(line);
  declare_trace_option(line);
  declare_plot(line);
  declare_format(line);
  if (!line.parse(arguments)) return 0;
  const PointLists lists = read_points(line);
  const OutputFormat format = read_format(line);
  std::string trace;
  if (line.given("trace")) {
    trace = line.get<std::string>("trace");
    if (trace.empty()) throw UsageError("--trace needs the name of a folder");
    if (lists.size() > 1) throw UsageError("--trace is of a single point; name one of everything");
  }
  const std::optional<PlotSettings> plot = read_plot(line, lists);
  // Its folder is gone before anything is said: who reads that may go away.
  const std::vector<Job> jobs = [&] {
    const std::optional<OutliveReader> outlive_reader =
        trace.empty() ? std::nullopt : std::optional<OutliveReader>(std::in_place);
    return Simulations(lists, read_weight_choice(line), read_mixture_choice(line),
                       read_simulated_host(line), trace)
        .run();
  }();
  if (jobs.size() == 1 && !jobs.front().problem.empty())
    throw Error("{} on {}: {}", jobs.front().model, jobs.front().machine, jobs.front().problem);
  if (jobs.size() == 1 && format == OutputFormat::table) {
    std::cout << describe(jobs.front().result);
  } else {
    std::cout << format_jobs(format, jobs);
  }
  if (plot) draw(*plot, jobs);
  const bool any =
      std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.problem.empty(); });
  return any ? 0 : 1;
}

}  // namespace sluice
