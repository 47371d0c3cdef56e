#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "engine/plan/planner.h"
#include "engine/trace/trace_session.h"
#include "models/config.h"
#include "schedulers/loader.h"

namespace sluice {

/// What is simulated.
struct SimulationSetup {
  const ModelConfig& config;
  DType dtype;  ///< of activations and KV: f32 or bf16
  std::shared_ptr<const CostModel> costs;
  LoadedPolicy& policy;
  Workload workload;
  TraceSession& trace;  ///< records the run if it was asked to
  /// What StarPU may take of HBM, as in a run, where plans leave some of that for its rounding;
  /// without it, what plans may use.
  std::optional<std::uint64_t> hbm_limit_bytes = std::nullopt;
};

/// One phase: until every request has its first token, or after that.
struct SimulatedPhase {
  double seconds = 0;
  BusyTimes busy;
  std::int64_t iterations = 0;
};

/// What came out. Times are the simulated machine's, except for wall_s.
struct Simulation {
  Plan plan;
  SimulatedPhase prefill;
  SimulatedPhase decode;
  double tpot_s = 0;  ///< of a request, mean
  std::int64_t num_tasks = 0;
  double to_gpu_bytes = 0;
  double to_cpu_bytes = 0;
  double disk_bytes = 0;  ///< read
  /// Seconds for which the link to the GPU worked while a device computed; at least, if something
  /// else than data was waited for.
  double overlap_s = 0;
  /// HBM: StarPU's count at the end of each task. Host memories: weights and KV that live there,
  /// and StarPU's count of what passes.
  TierBytes peak_bytes;
  /// Empty, or which of the host's tiers held more than it has room for, in words: then the times
  /// are those of a machine with more of it.
  std::string shortage;
  double wall_s = 0;  ///< of this machine

  double ttft_s() const { return prefill.seconds; }
  double latency_s() const { return prefill.seconds + decode.seconds; }
  /// LIA's counting: generated tokens over end-to-end time, prefill included.
  double tokens_per_s() const {
    return static_cast<double>(plan.workload.batch * plan.workload.output_tokens) / latency_s();
  }
  BusyTimes busy() const;
};

/// Runs the engine's own graphs, under the policy and its scheduler, on the machine that
/// write_platform() has described, with times from the cost model and no kernels. Once in a
/// process. Throws Error when the machine is too small, or for what the simulator cannot do yet.
Simulation simulate(const SimulationSetup& setup);

}  // namespace sluice
