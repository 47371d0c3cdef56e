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
  std::vector<int> cores;                      ///< one a thread
  std::optional<CpuPlan> plan = std::nullopt;  ///< how they are cut up

  /// As a runtime takes the plan.
  std::optional<PhaseGroups> groups() const;
  /// Where the plan puts the weights' columns: by decode's groups. Nothing where one of them names
  /// no node.
  std::vector<NodeShare> node_shares() const;
  int num_threads() const { return static_cast<int>(cores.size()); }
  /// The plan in words, which tell plans apart: "prefill 0-3; decode 0-1@0 0.5 | 2-3@1 0.5" with
  /// each group's share, and its node where the machine has several. Empty where all cores are one
  /// group in both phases, bound to none of several nodes.
  std::string cut_text() const;
  std::string cut_text(std::size_t num_numa_nodes) const;
};

/// The plan in force as `cpu_plan` of --stats, bench --json and info --json.
nlohmann::json cpu_plan_as_json(const CpuUse& cpu);

/// What costs are counted by; weights and KV have the GEMM type.
ModelDimensions model_dimensions(const ModelConfig& config, DType dtype);

}  // namespace sluice
