#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cpu.h"
#include "base/cpu_plan.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/units.h"
#include "codelets/kernels/quantized/gemm.h"
#include "codelets/kernels/simd.h"
#include "codelets/runtime/gpu.h"
#include "codelets/runtime/runtime.h"
#include "codelets/weights/plain.h"
#include "engine/commands/build_kind.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/subcommands.h"
#include "engine/console/core_list.h"
#include "engine/machine/calibration_store.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "engine/measure/memory_probe.h"

namespace sluice {
namespace {

/// "9.0", as NVIDIA writes it.
std::string capability_text(int capability) {
  return fmt::format("{}.{}", capability / 10, capability % 10);
}

nlohmann::json describe(const GpuDevice& gpu) {
  return {{"name", gpu.name},
          {"compute_capability", capability_text(gpu.compute_capability)},
          {"multiprocessors", gpu.num_multiprocessors},
          {"memory_bytes", gpu.memory_bytes},
          {"free_bytes", gpu.free_bytes}};
}

nlohmann::json cuda_as_json(const GpuList& gpus) {
  nlohmann::json architectures = nlohmann::json::array();
  for (const int architecture : cuda_architectures()) architectures.push_back(architecture);
  nlohmann::json devices = nlohmann::json::array();
  for (const GpuDevice& gpu : gpus.devices) devices.push_back(describe(gpu));
  nlohmann::json cuda = {{"compiled", has_cuda_kernels()},
                         {"architectures", std::move(architectures)},
                         {"devices", std::move(devices)}};
  if (gpus.devices.empty()) cuda["problem"] = gpus.problem;
  return cuda;
}

nlohmann::json memory_nodes_as_json(const CpuTopology& topology, const GpuList& gpus,
                                    const std::optional<MemoryProbe>& probe) {
  nlohmann::json nodes = nlohmann::json::array();
  for (std::size_t i = 0; i < topology.numa_nodes.size(); ++i) {
    const NumaNode& node = topology.numa_nodes[i];
    nodes.push_back({{"tier", tier_of(node)},
                     {"numa_node", node.os_index},
                     {"bytes", node.memory_bytes},
                     {"cpus", node.num_cores}});
    if (probe) nodes.back()["probe"] = as_json(probe->nodes[i], probe->num_threads);
  }
  for (const GpuDevice& gpu : gpus.devices) {
    nodes.push_back(
        {{"tier", "hbm"}, {"numa_node", nullptr}, {"bytes", gpu.memory_bytes}, {"cpus", 0}});
  }
  return nodes;
}

/// "2 models, /home/me/.local/share/sluice/calibration/..."
std::string calibrated_text() {
  const HostUse use = default_host_use();
  const std::vector<std::filesystem::path> files =
      stored_calibrations(calibration_setup(use.dtype, use.threads));
  if (files.empty()) return "no model (sluice calibrate)";
  return fmt::format("{} model{}, {}", files.size(), files.size() == 1 ? "" : "s",
                     files.front().parent_path().string());
}

void print_gpus(const GpuList& gpus) {
  for (const GpuDevice& gpu : gpus.devices) {
    fmt::print("GPU            {}, compute capability {}, {} of {} free (tier hbm)\n", gpu.name,
               capability_text(gpu.compute_capability), format_bytes(gpu.free_bytes),
               format_bytes(gpu.memory_bytes));
  }
  if (gpus.devices.empty()) fmt::print("GPU            none ({})\n", gpus.problem);
  std::vector<std::string> architectures;
  for (const int architecture : cuda_architectures())
    architectures.push_back(capability_text(architecture));
  fmt::print("CUDA kernels   {}\n", has_cuda_kernels()
                                        ? fmt::format("{}", fmt::join(architectures, " "))
                                        : std::string("not compiled"));
}

void print_words(const CpuTopology& topology, const GpuList& gpus, const Runtime& runtime,
                 const std::optional<MemoryProbe>& probe) {
  fmt::print("CPU            {}\n", topology.model_name);
  fmt::print("cores          {} usable, {} hardware threads, {} package{}\n", topology.cores.size(),
             topology.num_processors, topology.num_packages, topology.num_packages == 1 ? "" : "s");
  if (topology.cgroup_cores > 0) fmt::print("cgroup limit   {} cores\n", topology.cgroup_cores);
  fmt::print("threads        {} by default\n", default_num_threads(topology));
  fmt::print("topology       {}\n", Topology::of_this_machine().summary());
  fmt::print("oneDNN uses    {}\n", onednn_isa_name());
  fmt::print("4 and 8 bits   {}\n", quantized::to_string(quantized::fastest_arithmetic()));
  fmt::print("vector loops   {} (Highway)\n", simd::target_name());
  for (const NumaNode& node : topology.numa_nodes) {
    fmt::print("memory node {}  {}, {}\n", node.os_index, format_bytes(node.memory_bytes),
               node.has_processors ? fmt::format("{} cores (tier ddr)", node.num_cores)
                                   : std::string("no cores (CXL or other far memory)"));
  }
  fmt::print("available      {}\n", format_bytes(available_memory_bytes()));
  print_gpus(gpus);
  fmt::print("StarPU         {}, flavour {}\n", runtime.version(), runtime.flavour());
  fmt::print("FxT            {}\n", fxt_text());
  fmt::print("calibrated     {}\n", calibrated_text());
  if (probe) fmt::print("\n{}", describe(*probe, topology, gpus));
}

nlohmann::json as_json(const CpuTopology& topology, const GpuList& gpus, const Runtime& runtime,
                       const std::optional<MemoryProbe>& probe) {
  return {{"cpu",
           {{"name", topology.model_name},
            {"cores", topology.cores.size()},
            {"threads", default_num_threads(topology)},
            {"isa", simd::target_name()},
            {"onednn_isa", onednn_isa_name()},
            {"quantized_arithmetic", quantized::to_string(quantized::fastest_arithmetic())}}},
          {"cuda", cuda_as_json(gpus)},
          {"topology", Topology::of_this_machine().summary()},
          {"cpu_plan", cpu_plan_as_json({.cores = topology.cores})},
          {"memory_nodes", memory_nodes_as_json(topology, gpus, probe)},
          {"available_bytes", available_memory_bytes()},
          {"starpu", {{"version", runtime.version()}, {"flavour", runtime.flavour()}}},
          {"linked_with_fxt", is_linked_with_fxt()}};
}

/// Of a machine that is only described: nothing is started for it.
void show_described(const Topology& topology, bool as_json_text) {
  const CpuPlan plan = static_plan(topology.cores(), topology);
  if (as_json_text) {
    nlohmann::json nodes = nlohmann::json::array();
    for (const TopologyMemory& memory : topology.memories())
      nodes.push_back({{"numa_node", memory.os_index},
                       {"bytes", memory.bytes},
                       {"hardware_threads", memory.near_processors.size()}});
    const nlohmann::json json = {{"topology", topology.summary()},
                                 {"memory_nodes", std::move(nodes)},
                                 {"cpu_plan", as_json(plan, topology)}};
    fmt::print("{}\n", json_text(json, 2));
    return;
  }
  fmt::print("topology       {}\n", topology.summary());
  for (const TopologyMemory& memory : topology.memories()) {
    fmt::print("memory node {}  {}, {} hardware threads\n", memory.os_index,
               format_bytes(memory.bytes), memory.near_processors.size());
  }
  for (const CpuGroup& group : plan.decode.groups) {
    fmt::print("static plan    cores {}{}, {:.3g} % of the columns\n", cores_text(group.cores),
               group.numa_node ? fmt::format(" by node {}", *group.numa_node) : "",
               100 * group.share);
  }
}

}  // namespace

int run_info(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice info [--memory | --topology FILE|TEXT] [--json]",
                   "Shows what Sluice sees of this machine.");
  line.options().add_options()  //
      ("memory", boost::program_options::bool_switch(),
       "take some memory of each NUMA node, see where it lies, and measure how fast it is")  //
      ("topology", boost::program_options::value<std::string>(),
       "show another machine's processors instead: a file that lstopo --of xml has written, or "
       "hwloc's synthetic text, e.g. \"pack:2 numa:1 core:16 pu:2\"")  //
      ("json", boost::program_options::bool_switch(), "print one JSON object");
  if (!line.parse(arguments)) return 0;
  if (line.given("topology")) {
    if (line.get<bool>("memory"))
      throw UsageError("--memory measures this machine; leave it or --topology out");
    show_described(Topology::described_by(line.get<std::string>("topology")),
                   line.get<bool>("json"));
    return 0;
  }
  const CpuTopology topology = read_cpu_topology();
  const GpuList gpus = find_gpus();
  const std::vector<int> cores =
      line.get<bool>("memory") ? choose_cores(std::nullopt) : topology.cores;
  Runtime runtime({.cores = cores});
  std::optional<MemoryProbe> probe;
  if (line.get<bool>("memory")) {
    const PausedWorkers paused;
    probe = probe_memory(runtime.setup_pool(), topology, gpus);
  }
  if (line.get<bool>("json")) {
    fmt::print("{}\n", json_text(as_json(topology, gpus, runtime, probe), 2));
  } else {
    print_words(topology, gpus, runtime, probe);
  }
  return 0;
}

}  // namespace sluice
