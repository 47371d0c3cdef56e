#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "engine/commands/options/command_line.h"
#include "engine/machine/compute.h"
#include "graphs/decoder_graph.h"

namespace sluice {

/// The value of `name`. Throws UsageError when it is outside of [low, high].
template <typename T>
T in_range(const CommandLine& line, const std::string& name, T low, T high) {
  const T value = line.get<T>(name);
  if (!(value >= low && value <= high)) {
    throw UsageError("--{} {}: expected a value from {} to {}", name, value, low, high);
  }
  return value;
}

void declare_dtype_option(CommandLine& line);
/// --threads and --cpu-plan.
void declare_cpu_options(CommandLine& line);
/// --dtype, --threads and --cpu-plan.
void declare_compute_options(CommandLine& line);

/// --dtype, if it was given. Throws UsageError.
std::optional<DType> read_dtype(const CommandLine& line);
/// --threads, if it was given. Throws UsageError.
std::optional<int> read_threads(const CommandLine& line);
/// The cores that --threads and --cpu-plan choose; of the tuned plan, `auto`, that of
/// the line's --model. Throws UsageError where they do not go together, and Error where a plan is
/// not this machine's.
CpuUse read_cpu_use(const CommandLine& line);

/// What a run computes in, and on which cores.
struct ComputeSettings {
  DType dtype = DType::bf16;
  CpuUse cpu;
};
/// What the options, or the machine where they say nothing, choose. Throws UsageError, and Error
/// where there are fewer cores.
ComputeSettings read_compute_settings(const CommandLine& line);

/// --no-fuse
void declare_fusion_option(CommandLine& line);
Fusion read_fusion(const CommandLine& line);

}  // namespace sluice
