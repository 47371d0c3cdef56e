#include "engine/commands/options/compute_options.h"

#include "base/topology.h"
#include "engine/commands/options/weight_options.h"
#include "engine/machine/compute.h"
#include "engine/machine/cpu_plan_store.h"

namespace sluice {

namespace po = boost::program_options;

void declare_dtype_option(CommandLine& line) {
  line.options().add_options()  //
      ("dtype", po::value<std::string>(),
       "f32, bf16 or f16, which is computed as bf16; without it bf16");
}

void declare_compute_options(CommandLine& line) {
  declare_dtype_option(line);
  declare_cpu_options(line);
}

void declare_cpu_options(CommandLine& line) {
  line.options().add_options()                                                               //
      ("threads,t", po::value<int>(), "processor threads; without it, one a physical core")  //
      ("cpu-plan", po::value<std::string>(),
       "how the threads' cores are cut into groups for prefill and for decode: interleaved (one "
       "group), static (a group for each NUMA node), auto (what sluice tune has found for the "
       "model), or a JSON file with a plan; default: interleaved");
}

std::optional<DType> read_dtype(const CommandLine& line) {
  if (!line.given("dtype")) return std::nullopt;
  const std::string& text = line.get<std::string>("dtype");
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype) throw UsageError("--dtype {}: expected f32, bf16 or f16", text);
  return dtype;
}

std::optional<int> read_threads(const CommandLine& line) {
  if (!line.given("threads")) return std::nullopt;
  return in_range(line, "threads", 1, 512);
}

namespace {

/// --threads may only say again what the plan says.
CpuUse use_of(CpuPlan plan, const std::string& name, std::optional<int> threads) {
  std::vector<int> cores = plan.cores();
  if (threads && *threads != std::ssize(cores))
    throw UsageError("--threads {}: the plan {} names {} cores; leave --threads out", *threads,
                     name, cores.size());
  return {.cores = std::move(cores), .plan = std::move(plan)};
}

/// Of the model that the line names; nothing, with a line on stderr, where it was not tuned.
std::optional<CpuPlan> tuned_plan(const CommandLine& line, const Topology& topology) {
  const std::string& name = line.get<std::string>("model");
  ModelConfig config = find_model_config(name);
  const WeightChoice weights = read_weight_choice(line);
  weights.use_on(name, config);
  // What is said of f16 is said where the run chooses its type.
  const DType dtype = read_dtype(line) == DType::f32 ? DType::f32 : default_dtype;
  std::optional<CpuPlan> plan = tuned_cpu_plan(dtype, model_dimensions(config, dtype), topology);
  if (!plan) {
    std::string command = "sluice tune --model " + name;
    if (dtype == DType::f32) command += " --dtype f32";
    for (const std::string& argument : weights.arguments()) command += " " + argument;
    const std::size_t cores = topology.cores().size();
    fmt::print(stderr,
               "sluice: --cpu-plan auto: {} is not tuned on {} core{} ({}); going on with static\n",
               name, cores, cores == 1 ? "" : "s", command);
  }
  return plan;
}

}  // namespace

CpuUse read_cpu_use(const CommandLine& line) {
  const std::optional<int> threads = read_threads(line);
  if (!line.given("cpu-plan")) return {.cores = choose_cores(threads)};
  const std::string& name = line.get<std::string>("cpu-plan");
  const Topology topology = Topology::of_this_machine();
  if (name == "auto") {
    if (auto plan = tuned_plan(line, topology)) return use_of(*std::move(plan), name, threads);
  } else if (name != "static" && name != "interleaved") {
    return use_of(asked_cpu_plan(name, topology), name, threads);
  }
  const auto num_cores = std::ssize(topology.cores());
  if (threads.value_or(1) > num_cores)
    throw UsageError("--threads {}: a CPU plan has a thread a core, and there are {} cores",
                     *threads, num_cores);
  const std::vector<int> cores = choose_cores(threads);
  return {.cores = cores,
          .plan = name == "interleaved" ? interleaved_plan(cores) : static_plan(cores, topology)};
}

ComputeSettings read_compute_settings(const CommandLine& line) {
  return {choose_dtype(read_dtype(line)), read_cpu_use(line)};
}

void declare_fusion_option(CommandLine& line) {
  line.options().add_options()  //
      ("no-fuse", boost::program_options::bool_switch(),
       "every sublayer a task of its own, instead of stages");
}

Fusion read_fusion(const CommandLine& line) {
  return line.get<bool>("no-fuse") ? Fusion::sublayers : Fusion::layers;
}

}  // namespace sluice
