#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/cpu.h"
#include "base/memory.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/simd.h"
#include "codelets/runtime/runtime.h"
#include "engine/calibration_store.h"
#include "engine/command_line.h"
#include "engine/machine_costs.h"

namespace sluice {
namespace {

/// Names of the NVIDIA GPUs that the system's driver shows.
std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    std::string text;
    while (std::getline(file, text)) {
      if (!text.starts_with("Model:")) continue;
      names.push_back(text.substr(text.find_first_not_of(" \t", text.find(':') + 1)));
    }
  }
  return names;
}

/// "2 models, /home/me/.local/share/sluice/calibration/..."
std::string calibrated_text() {
  const HostUse use = default_host_use();
  const std::vector<std::filesystem::path> files =
      stored_calibrations(calibration_setup(use.dtype, use.threads, use.domains));
  if (files.empty()) return "no model (sluice calibrate)";
  return fmt::format("{} model{}, {}", files.size(), files.size() == 1 ? "" : "s",
                     files.front().parent_path().string());
}

}  // namespace

int run_info(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice info", "Shows what Sluice sees of this machine.");
  if (!line.parse(arguments)) return 0;
  const CpuTopology topology = read_cpu_topology();
  const Runtime runtime({.domains = {topology.cores}});
  fmt::print("CPU            {}\n", topology.model_name);
  fmt::print("cores          {} usable, {} hardware threads, {} package{}\n", topology.cores.size(),
             topology.num_processors, topology.num_packages, topology.num_packages == 1 ? "" : "s");
  if (topology.cgroup_cores > 0) fmt::print("cgroup limit   {} cores\n", topology.cgroup_cores);
  fmt::print("threads        {} by default\n", default_num_threads(topology));
  fmt::print("oneDNN uses    {} (default dtype {})\n", onednn_isa_name(),
             onednn_has_fast_bf16() ? "bf16" : "f32");
  fmt::print("vector loops   {} (Highway)\n", simd::target_name());
  for (const NumaNode& node : topology.numa_nodes) {
    fmt::print("memory node {}  {}, {}\n", node.os_index, format_bytes(node.memory_bytes),
               node.num_cores > 0 ? fmt::format("{} cores (tier ddr)", node.num_cores)
                                  : std::string("no cores (CXL or other far memory)"));
  }
  fmt::print("available      {}\n", format_bytes(available_memory_bytes()));
  const std::vector<std::string> gpus = gpu_names();
  for (const std::string& name : gpus)
    fmt::print("GPU            {} (not used yet: Sluice computes on the CPU)\n", name);
  if (gpus.empty()) fmt::print("GPU            none\n");
  fmt::print("StarPU         {}, flavour {}\n", runtime.version(), runtime.flavour());
  fmt::print("calibrated     {}\n", calibrated_text());
  return 0;
}

}  // namespace sluice
