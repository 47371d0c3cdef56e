#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/cpu_plan.h"
#include "base/dtype.h"
#include "base/topology.h"
#include "perfmodels/work.h"

namespace sluice {

/// Where `sluice tune` keeps what it measures of a model: beside the calibrations of this machine
/// and kernel_generation, a file a model's layer shape, GEMM type and set of cores.
std::filesystem::path cpu_plan_path(DType dtype, const ModelDimensions& model,
                                    const Topology& topology);

/// The plan that was found for a model; nothing where none was, or not to the end. Throws Error
/// where the file cannot be read, and where it is another machine's.
std::optional<CpuPlan> tuned_cpu_plan(DType dtype, const ModelDimensions& model,
                                      const Topology& topology);

/// Of the file that --cpu-plan names. Throws Error where there is none, and as read_cpu_plan()
/// does.
CpuPlan asked_cpu_plan(const std::string& name, const Topology& topology);

}  // namespace sluice
