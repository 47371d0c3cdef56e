#include "engine/machine/cpu_plan_store.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/console/core_list.h"
#include "engine/machine/calibration_store.h"

namespace sluice {

namespace {

/// Names the cores where the process may not use all.
std::string suffix_of(const Topology& topology) {
  std::vector<int> all;
  for (const std::vector<int>& threads : topology.threads_of_cores())
    all.push_back(threads.front());
  const std::vector<int> cores = topology.cores();
  return cores == all ? "" : fmt::format("-on-{:08x}", checksum(cores_text(cores)));
}

}  // namespace

std::filesystem::path cpu_plan_path(DType dtype, const ModelDimensions& model,
                                    const Topology& topology) {
  const std::filesystem::path calibration =
      calibration_path(calibration_setup(dtype, static_cast<int>(topology.cores().size())), model);
  return calibration.parent_path() / "cpu-plans" /
         (calibration.stem().string() + suffix_of(topology) + ".json");
}

std::optional<CpuPlan> tuned_cpu_plan(DType dtype, const ModelDimensions& model,
                                      const Topology& topology) {
  const std::filesystem::path path = cpu_plan_path(dtype, model, topology);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  const std::string name = path.string();
  try {
    const nlohmann::json json = parse_json(read_file(name), name, DuplicateKeys::refuse);
    if (json.is_object() && !json.contains("cpu_plan")) return std::nullopt;
    return read_cpu_plan(json, name, topology);
  } catch (const Error& problem) {
    throw Error("{}; sluice tune --force measures anew", problem.what());
  }
}

CpuPlan asked_cpu_plan(const std::string& name, const Topology& topology) {
  if (!std::filesystem::exists(name))
    throw Error(
        "--cpu-plan {}: no such file; expected auto, interleaved, static, or a file with a plan",
        name);
  return read_cpu_plan(parse_json(read_file(name), name, DuplicateKeys::refuse), name, topology);
}

}  // namespace sluice
