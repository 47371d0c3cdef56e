#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/options/command_line.h"
#include "models/config.h"
#include "perfmodels/work.h"

namespace sluice {

/// What is asked of mixtures of experts.
struct MixtureChoice {
  /// A dense layer's FFN as equal parts of it, some of which a token goes through.
  struct Cut {
    std::int64_t num_experts = 1;
    std::int64_t experts_per_token = 1;
  };
  std::optional<Cut> cut;
  std::string routing = "uniform";  ///< or zipf:S, or a routing file

  /// Cuts the FFN of `model`. Throws UsageError for what is no shape, has experts already, or does
  /// not divide.
  void cut_ffn(const std::string& model, ModelConfig& config) const;
  /// Gives the costs of `model` its routing. Throws UsageError for a model without experts, and
  /// Error for a file that cannot be read or is of another one.
  void route(const std::string& model, ModelDimensions& dimensions) const;
  /// The options that choose the same.
  std::vector<std::string> arguments() const;
};

/// --record-routing.
void declare_record_routing(CommandLine& line);
/// Throws UsageError for a model without experts, and with a device, whose experts nobody counts;
/// Error for a file that cannot be written.
void check_records_routing(const std::string& path, const std::string& model,
                           const ModelConfig& config, bool has_device);

/// --experts and --routing.
void declare_mixture_options(CommandLine& line);
/// Throws UsageError.
MixtureChoice read_mixture_choice(const CommandLine& line);

}  // namespace sluice
