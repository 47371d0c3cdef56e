#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "base/topology.h"

namespace sluice {

/// Cores that share a part of each weight's columns, and read it first.
struct CpuGroup {
  std::vector<int> cores;  ///< one hardware thread a core, by the system's number
  /// Where its part of the weights lives; nothing: on all nodes in turn.
  std::optional<int> numa_node = std::nullopt;
  double share = 1;  ///< of the columns, above 0; those of a phase's groups add up to 1

  bool operator==(const CpuGroup&) const = default;
};

/// How the cores are cut up while one phase runs.
struct CpuPhasePlan {
  std::vector<CpuGroup> groups;
  std::vector<int> left_out = {};  ///< cores that sleep meanwhile
  /// Seconds that an iteration takes, by the cost model and as measured.
  std::optional<double> predicted_s = std::nullopt;
  std::optional<double> measured_s = std::nullopt;

  int num_cores() const;
  bool operator==(const CpuPhasePlan&) const = default;
};

/// How the cores are cut up for prefill and for decode (Sandwich sections 3.1 and 5: a service
/// configuration a phase). An iteration with prompts runs by the prefill plan.
struct CpuPlan {
  CpuPhasePlan prefill;
  CpuPhasePlan decode;

  /// All cores that some phase uses: those of prefill's groups, then others that decode has.
  std::vector<int> cores() const;
  bool operator==(const CpuPlan&) const = default;
};

/// All of these cores in one group, in both phases; pages on all nodes in turn.
CpuPlan interleaved_plan(const std::vector<int>& cores);
/// A group for each NUMA node that some of these cores are near to, of as large a share as it has
/// of the cores; in both phases.
CpuPlan static_plan(const std::vector<int>& cores, const Topology& topology);

/// A phase's groups as a pool has them whose threads are on `cores`. Throws Error for a core that
/// is none of these.
ThreadPool::Cut threads_of(const CpuPhasePlan& plan, const std::vector<int>& cores);

/// {"groups": [{"cores", "numa_node", "share"}], "left_out", "predicted_s", "measured_s"}
nlohmann::json as_json(const CpuPhasePlan& plan);
/// Reads that. `where` and `what` name it in messages. Throws Error as read_cpu_plan() does.
CpuPhasePlan read_cpu_phase_plan(const nlohmann::json& json, std::string_view where,
                                 const std::string& what, const Topology& topology);

/// {"prefill": {"groups": [{"cores", "numa_node", "share"}], "left_out", "predicted_s",
/// "measured_s"}, "decode", "topology"}
nlohmann::json as_json(const CpuPlan& plan, const Topology& topology);
/// Reads that, or an object that has it as "cpu_plan". `where` names it in messages. Throws Error,
/// in one line, when a field is missing or of another kind, when a core stands twice in a phase, is
/// none of the machine's or none that the process may use, when a phase has no core, when shares do
/// not add up to 1, or when the plan is another topology's.
CpuPlan read_cpu_plan(const nlohmann::json& json, std::string_view where, const Topology& topology);

}  // namespace sluice
