// The simulator's program: one point, on the machine whose files STARPU_PERF_MODEL_DIR names.
// `sluice simulate` and `sluice replay` write them and start it; its result goes to stdout as one
// JSON object.
#include <sys/prctl.h>

#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "codelets/runtime/simulated.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/replay_options.h"
#include "engine/commands/options/serving_options.h"
#include "engine/commands/options/simulated_host_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "engine/plan/cpu_plan_report.h"
#include "engine/replay/outcome_json.h"
#include "engine/simulate/simulated_replay.h"
#include "engine/simulate/simulation.h"
#include "engine/simulate/simulation_report.h"
#include "engine/trace/trace_session.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

/// A stand-in's StarPU may take all of it.
std::optional<std::uint64_t> hbm_limit_bytes(const SimulatedHost& host) {
  if (!host.stand_in) return std::nullopt;
  return host.stand_in->memory_bytes;
}

int run_replay(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice-simulate replay [options]",
                   "Replays requests on a simulated machine; sluice replay calls it.");
  line.options().add_options()                                            //
      ("model", po::value<std::string>()->required(), "shape or folder")  //
      ("machine", po::value<std::string>()->required(), "profile, or this");
  declare_replay_workloads(line);
  declare_serving_options(line);
  declare_policy_options(line);
  declare_simulated_host(line);
  if (!line.parse(arguments)) return 0;
  const auto& model = line.get<std::string>("model");
  const ModelConfig config = find_model_config(model);
  const SimulatedHost host = read_simulated_host(line);
  const auto& machine = line.get<std::string>("machine");
  LoadedPolicy policy(line.get<std::string>("policy"), read_policy_options(line));
  ServingSettings serving = read_serving(line);
  serving.limits.max_model_len = serving.max_model_len.value_or(config.max_positions);
  EngineOptions options;
  serving.apply_to(options);
  const ReplayWorkloads workloads = read_replay_workloads(line);
  const MachineCosts costs =
      costs_by_cpu_plan(
          simulated_costs(machine, model_dimensions(config, default_dtype), model, host), machine,
          host.cpu_plan, workloads.mean_workload(0, serving.limits.max_sequences))
          .costs;
  const Arrivals& arrivals = workloads.arrivals.front();
  const ReplayOutcome outcome = simulate_replay(
      {.config = config,
       .dtype = default_dtype,
       .costs = costs.model,
       .policy = policy,
       .limits = serving.limits,
       .options = options,
       .sharing = serving.sharing,
       .hbm_limit_bytes = hbm_limit_bytes(host)},
      {.requests = workloads.requests(0, arrivals),
       .arrivals = arrivals,
       .tokens = {.first = 0, .last = static_cast<std::int32_t>(config.vocab_size - 1)},
       .seed = workloads.seed});
  std::cout << outcome_to_json(outcome);
  return 0;
}

int run(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice-simulate [options]", "Simulates one point; sluice simulate calls it.");
  line.options().add_options()                                            //
      ("model", po::value<std::string>()->required(), "shape or folder")  //
      ("machine", po::value<std::string>()->required(), "profile, or this")(
          "batch", po::value<std::int64_t>()->required(), "sequences at once")      //
      ("input-tokens", po::value<std::int64_t>()->required(), "of each prompt")     //
      ("output-tokens", po::value<std::int64_t>()->required(), "of each sequence")  //
      ("weight-bits", po::value<double>()->default_value(16), "16 or 4.5");
  declare_weight_options(line);
  declare_mixture_options(line);
  declare_policy_options(line);
  declare_host_tiers(line);
  declare_simulated_host(line);
  declare_trace_option(line);
  if (!line.parse(arguments)) return 0;
  const auto& model = line.get<std::string>("model");
  const auto& machine = line.get<std::string>("machine");
  ModelConfig config = find_model_config(model);
  const MixtureChoice mixture = read_mixture_choice(line);
  mixture.cut_ffn(model, config);
  read_weight_choice(line).use_on(model, config);
  const DType dtype = default_dtype;
  ModelDimensions dimensions = model_dimensions(config, dtype);
  if (const double bits = line.get<double>("weight-bits"); bits != 16)
    dimensions.weight_bits = bits;
  mixture.route(model, dimensions);
  const SimulatedHost host = read_simulated_host(line);
  LoadedPolicy policy(line.get<std::string>("policy"), read_policy_options(line));
  policy.policy().set_host_tiers(read_host_tiers(line));
  const Workload workload = {.batch = line.get<std::int64_t>("batch"),
                             .input_tokens = line.get<std::int64_t>("input-tokens"),
                             .output_tokens = line.get<std::int64_t>("output-tokens")};
  const auto [costs, cpu_plan] = costs_by_cpu_plan(
      simulated_costs(machine, dimensions, model, host), machine, host.cpu_plan, workload);
  TraceSession trace(read_trace_folder(line));
  if (cpu_plan) trace.computed_by(json_text(cpu_plan_report_json(*cpu_plan)));
  const auto run_point = [&] {
    const Simulation simulation = simulate({.config = config,
                                            .dtype = dtype,
                                            .costs = costs.model,
                                            .policy = policy,
                                            .workload = workload,
                                            .trace = trace,
                                            .hbm_limit_bytes = hbm_limit_bytes(host)});
    std::cout << simulation_json({.model = model,
                                  .machine = costs.machine,
                                  .policy = policy.name(),
                                  .workload = workload,
                                  .plan = simulation.plan,
                                  .problem = "",
                                  .running_costs = costs.running_costs},
                                 simulation, cpu_plan);
    return 0;
  };
  return trace.around(run_point, false);
}

}  // namespace
}  // namespace sluice

// StarPU renames it, and runs it as an actor of the simulation.
int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read what comes of it
  try {
    const sluice::CommandLine::Arguments arguments(argv + 1, argv + argc);
    if (!arguments.empty() && arguments.front() == "replay")
      return sluice::run_replay({arguments.begin() + 1, arguments.end()});
    return sluice::run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  return 1;
}
