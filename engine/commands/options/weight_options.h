#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "engine/commands/options/command_line.h"
#include "models/config.h"

namespace sluice {

/// The formats in which a shape has its weights, where they were asked for.
struct WeightChoice {
  std::optional<WeightFormat> layers;
  std::optional<WeightFormat> head;

  /// Gives them to the config of `model`. Throws UsageError for a model that is no shape, whose
  /// formats are its own, and where a group does not fit.
  void use_on(const std::string& model, ModelConfig& config) const;
  /// The options that choose the same.
  std::vector<std::string> arguments() const;
};

/// --weights and --head-weights.
void declare_weight_options(CommandLine& line);
/// Throws UsageError.
WeightChoice read_weight_choice(const CommandLine& line);

/// Throws UsageError for a text that names no format.
WeightFormat read_weight_format(const CommandLine& line, const std::string& option);

}  // namespace sluice
