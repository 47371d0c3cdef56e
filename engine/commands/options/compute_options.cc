#include "engine/commands/options/compute_options.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "base/topology.h"
#include "engine/machine/compute.h"

namespace sluice {

void declare_compute_options(CommandLine& line) {
  namespace po = boost::program_options;
  line.options().add_options()  //
      ("dtype", po::value<std::string>(),
       "f32, bf16 or f16, which is computed as bf16; without it bf16")                       //
      ("threads,t", po::value<int>(), "processor threads; without it, one a physical core")  //
      ("domains", po::value<int>()->default_value(1),
       "cut the threads into so many compute domains")  //
      ("cpu-plan", po::value<std::string>(),
       "how the threads' cores are cut into groups for prefill and for decode: interleaved (one "
       "group), static (a group for each NUMA node), or a JSON file with a plan; default: "
       "interleaved");
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

/// A file's plan; --threads may only say again what it says.
CpuUse use_of_file(const std::string& name, std::optional<int> threads, const Topology& topology) {
  if (!std::filesystem::exists(name))
    throw Error("--cpu-plan {}: no such file; expected interleaved, static, or a file with a plan",
                name);
  CpuPlan plan =
      read_cpu_plan(parse_json(read_file(name), name, DuplicateKeys::refuse), name, topology);
  std::vector<int> cores = plan.cores();
  if (threads && *threads != std::ssize(cores))
    throw UsageError("--threads {}: the plan {} names {} cores; leave --threads out", *threads,
                     name, cores.size());
  return {.domains = {std::move(cores)}, .plan = std::move(plan)};
}

}  // namespace

CpuUse read_cpu_use(const CommandLine& line) {
  const std::optional<int> threads = read_threads(line);
  const int num_domains = in_range(line, "domains", 1, 64);
  if (!line.given("cpu-plan"))
    return {.domains = cut_into_domains(choose_cores(threads), num_domains)};
  if (num_domains > 1)
    throw UsageError("--domains {} has no part in --cpu-plan, which has groups; leave it out",
                     num_domains);
  const std::string& name = line.get<std::string>("cpu-plan");
  const Topology topology = Topology::of_this_machine();
  if (name != "static" && name != "interleaved") return use_of_file(name, threads, topology);
  const auto num_cores = std::ssize(topology.cores());
  if (threads.value_or(1) > num_cores)
    throw UsageError("--threads {}: a CPU plan has a thread a core, and there are {} cores",
                     *threads, num_cores);
  const std::vector<int> cores = choose_cores(threads);
  return {.domains = {cores},
          .plan = name == "static" ? static_plan(cores, topology) : interleaved_plan(cores)};
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
