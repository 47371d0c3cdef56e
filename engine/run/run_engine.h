#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/engine.h"
#include "engine/run/graph_executor.h"
#include "graphs/kv_cache.h"
#include "graphs/model_weights.h"

namespace sluice {

/// The engine of a run, real or simulated: its tasks' graph, and a pool for each KV cache.
class RunEngine {
 public:
  struct Settings {
    AttentionForm attention = AttentionForm::fused;
    Fusion fusion = Fusion::layers;
    KvPool::Sharing sharing = KvPool::Sharing::off;
  };
  /// All outlive it, but for `options` and `settings`. `options` need no policy.
  RunEngine(const ModelWeights& model, std::span<const KvCache> cohorts, PolicyRun& policy,
            EngineOptions options, const Settings& settings);

  Engine& engine() { return *engine_; }
  Executor& executor() { return executor_; }
  const std::vector<KvPool>& pools() const { return pools_; }
  /// Of each pool: that of the first layer.
  const std::vector<std::string>& tiers() const { return tiers_; }

 private:
  GraphExecutor executor_;
  std::vector<KvPool> pools_;
  std::vector<std::string> tiers_;
  std::optional<Engine> engine_;
};

struct Model;

/// Tokens that end an output of the model, and those that it must not draw.
EngineOptions engine_options(const Model& model);

}  // namespace sluice
