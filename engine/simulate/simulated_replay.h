#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/batching/kv_pool.h"
#include "engine/replay/replay_run.h"
#include "engine/run/serving_plan.h"
#include "models/config.h"
#include "schedulers/loader.h"

namespace sluice {

/// A replay on a simulated machine.
struct SimulatedReplaySetup {
  const ModelConfig& config;
  DType dtype;  ///< of activations and KV
  std::shared_ptr<const CostModel> costs;
  LoadedPolicy& policy;
  ServingLimits limits;
  EngineOptions options;  ///< without a policy
  KvPool::Sharing sharing = KvPool::Sharing::on;
  /// What StarPU may take of HBM; without it, what plans may use.
  std::optional<std::uint64_t> hbm_limit_bytes = std::nullopt;
};

/// Runs requests through the engine's own graphs, under the policy and its scheduler, on the
/// machine that write_platform() has described: see simulate(). Once in a process. Throws Error
/// where the machine is too small.
ReplayOutcome simulate_replay(const SimulatedReplaySetup& setup, ReplayRequests requests);

}  // namespace sluice
