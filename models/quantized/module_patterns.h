#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "models/quantized/quantization_config.h"

namespace sluice {

/// Throws Error that begins with `where` for "re:" and an expression that is none.
void check_patterns(const std::vector<std::string>& patterns, const std::string& where);

/// compressed-tensors' match_name: "re:" and an expression that matches from the name's first
/// character on (Python's re.match), or the name itself.
bool matches_name(std::string_view module, std::string_view pattern);

/// The scheme of a module, as compressed-tensors picks it: of the targets that match, names come
/// first, then expressions, then classes. Null for one that is ignored or no target.
const QuantizationScheme* scheme_of(const QuantizationConfig& config, std::string_view module,
                                    std::string_view module_class);

/// Reads the patterns of is_converted() from a list of config.json. Throws Error for what is none.
void read_unconverted(const ConfigReader& fields, std::string_view key, QuantizationConfig& config);

/// Transformers' should_convert_module: false where one of the patterns is the beginning of the
/// name up to a dot, as text or as an expression, or its end.
bool is_converted(std::string_view module, const std::vector<std::string>& patterns);

/// The one scheme of the methods that are for all linear layers but those that are not converted,
/// and the head; null for these.
const QuantizationScheme* linear_scheme_of(const QuantizationConfig& config,
                                           std::string_view module, std::string_view module_class);

}  // namespace sluice
