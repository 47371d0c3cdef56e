#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_format.h"

namespace sluice {

class ConfigReader;

/// How some of a model's weights are stored: one of compressed-tensors' config_groups; the other
/// methods have one for all.
struct QuantizationScheme {
  /// The type of its scales stands in the files.
  WeightFormat format;
  bool is_packed = true;               ///< several codes in a word; else one a byte
  bool has_one_scale = false;          ///< for the whole tensor
  std::string name{};                  ///< "group_0", for messages
  std::vector<std::string> targets{};  ///< names of modules, of their classes, or "re:" expressions
};

/// config.json's quantization_config, checked. Plain data.
struct QuantizationConfig {
  std::string method;  ///< quant_method: "compressed-tensors", "gptq"...
  std::vector<QuantizationScheme> schemes;
  std::vector<std::string> ignored;  ///< patterns of modules that no scheme is for
  bool quantizes_head = false;       ///< compressed-tensors says so with patterns
  /// GPTQ's first convention: what is stored of a zero point is one less.
  bool zero_points_less_one = false;
  /// Made for activations that are quantised, too, each with a scale of its own; ours are not.
  bool quantizes_activations = false;
};

/// Throws Error: an unknown quant_method, and whatever the method does not support.
QuantizationConfig parse_quantization_config(const ConfigReader& fields);

}  // namespace sluice
