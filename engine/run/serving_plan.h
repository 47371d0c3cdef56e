#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/machine/compute.h"
#include "engine/run/run_setup.h"

namespace sluice {

/// Tokens of KV that there is room for.
struct KvTokens {
  std::optional<std::int64_t> all;  ///< on all tiers
  // Or of each pool: of requests whose KV is in HBM, and of others.
  std::optional<std::int64_t> hbm;
  std::optional<std::int64_t> ddr;

  bool by_tier() const { return hbm || ddr; }
};
/// As --kv-tokens has them: "1000" or "hbm=864,ddr=38000".
std::string to_string(const KvTokens& tokens);

/// How much requests that are not known yet may take together.
struct ServingLimits {
  std::int64_t max_sequences = 64;
  std::int64_t max_model_len = 0;        ///< tokens of a prompt and its output
  std::int64_t max_batch_tokens = 2048;  ///< rows of an iteration
  KvTokens kv_tokens;                    ///< what it does not say: as many as memory holds
};

struct ServingDemand {
  const Model& model;
  DType dtype = DType::bf16;
  CpuUse cpu;
  const TierSettings& tiers;
  Accelerator accelerator;
  Fusion fusion = Fusion::layers;
  ServingLimits limits;
};

/// The plan of a run of such requests. Policies plan for `max_sequences` requests that share the KV
/// evenly. Without `kv_tokens` there is KV for as many tokens as fit, at most for all requests at
/// their longest. Where these say a tier's pool, the policy plans for what HBM's holds, or, if it
/// keeps no KV there, for what the other one holds. Throws Error when not even one request at its
/// longest fits.
RunPlan plan_serving(const ServingDemand& demand, RunPolicy& policy);

/// The same of a machine that is described, where nothing will be loaded.
struct MachinePlan {
  Plan plan;
  KvPages kv;  ///< for PolicyRun, with the plan's workload
};
/// Throws Error where a tier is too small for what `limits` say, or for one request at its longest.
MachinePlan plan_serving_on(const CostModel& costs, LoadedPolicy& policy,
                            const ServingLimits& limits);

/// Empty, or a line on a pool that `tokens` name and that the policy has no use for.
std::string unused_pool(const KvTokens& tokens, const PolicyRun& policy);

}  // namespace sluice
