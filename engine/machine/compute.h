#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_plan.h"
#include "base/dtype.h"
#include "base/numa.h"
#include "codelets/runtime/runtime.h"
#include "models/config.h"
#include "perfmodels/work.h"

namespace sluice {

/// The architecture of a Hugging Face folder, of "tiny" or of a named shape. Throws Error.
ModelConfig find_model_config(const std::string& name);

/// What GEMMs take where nobody asks for another, here and on described machines.
constexpr DType default_dtype = DType::bf16;
/// The GEMM type, with a word on stderr when that is not what was asked for.
DType choose_dtype(std::optional<DType> asked);

/// The cores to compute on, one a thread, with a word on stderr when there are fewer.
std::vector<int> choose_cores(std::optional<int> asked);

/// The cores that a run computes on.
struct CpuUse {
  std::vector<std::vector<int>> domains;       ///< cores of each compute domain
  std::optional<CpuPlan> plan = std::nullopt;  ///< how those of the only one are cut up

  /// As a runtime takes the plan.
  std::optional<PhaseGroups> groups() const;
  /// Where the plan puts the weights' columns: by decode's groups. Nothing where one of them names
  /// no node.
  std::vector<NodeShare> node_shares() const;
  int num_domains() const { return static_cast<int>(domains.size()); }
  /// Of all domains.
  int num_threads() const;
};

/// The plan in force as `cpu_plan` of --stats, bench --json and info --json; null of several
/// domains.
nlohmann::json cpu_plan_as_json(const CpuUse& cpu);

/// The cores of each compute domain, as equal as can be. Throws UsageError when there are fewer
/// cores than domains.
std::vector<std::vector<int>> cut_into_domains(const std::vector<int>& cores, int num_domains);

/// What costs are counted by; weights and KV have the GEMM type.
ModelDimensions model_dimensions(const ModelConfig& config, DType dtype);

}  // namespace sluice
