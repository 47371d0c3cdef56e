#include "engine/run/run_engine.h"

#include <utility>

#include "models/model.h"

namespace sluice {

RunEngine::RunEngine(const ModelWeights& model, std::span<const KvCache> cohorts, PolicyRun& policy,
                     EngineOptions options, const Settings& settings)
    : executor_(model, cohorts,
                policy.graph_options({.num_slots = options.max_sequences,
                                      .attention = settings.attention,
                                      .fusion = settings.fusion})) {
  pools_.reserve(cohorts.size());
  for (const KvCache& cohort : cohorts) {
    pools_.emplace_back(cohort.num_pages(), settings.sharing);
    tiers_.emplace_back(to_string(cohort.home(0)));
  }
  options.policy = &policy;
  engine_.emplace(model.config(), pools_, executor_, options);
}

EngineOptions engine_options(const Model& model) {
  return {.eos_token_ids = model.generation.eos_token_ids.empty() ? model.config.eos_token_ids
                                                                  : model.generation.eos_token_ids,
          .suppress_tokens = model.generation.suppress_tokens,
          .begin_suppress_tokens = model.generation.begin_suppress_tokens};
}

}  // namespace sluice
