#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/batching/engine.h"
#include "engine/run/serving_plan.h"

namespace sluice {

class CommandLine;

/// How much may be computed and kept at once, for requests that arrive.
struct ServingSettings {
  ServingLimits limits;                       ///< but for max_model_len
  std::optional<std::int64_t> max_model_len;  ///< nothing: as the command has it
  std::int64_t max_skips = 16;
  std::int64_t max_overtakes = 64;
  KvPool::Sharing sharing = KvPool::Sharing::on;

  /// Of a run with these settings.
  void apply_to(EngineOptions& options) const;
};

/// --max-sequences, --max-model-len, --max-batch-tokens, --kv-tokens, --prefix-cache, --max-skips
/// and --max-overtakes.
void declare_serving_options(CommandLine& line);
/// What they say. Throws UsageError.
ServingSettings read_serving(const CommandLine& line);
/// The arguments that say the same.
std::vector<std::string> arguments_of(const ServingSettings& settings);

}  // namespace sluice
