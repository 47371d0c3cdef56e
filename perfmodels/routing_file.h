#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "perfmodels/routing.h"

namespace sluice {

/// A mixture of experts, as far as a routing file must fit it.
struct RoutedModel {
  std::string name;  ///< as --model has it; empty: not known, and any will do
  std::int64_t num_layers = 0;
  std::int64_t num_experts = 0;
  std::int64_t experts_per_token = 0;
};

/// A routing file's text. docs/reference/routing.md has its fields.
std::string format_routing(const RecordedRouting& recorded);

/// Reads one; `where` names it in messages. Throws Error (one line) when it is no such file, or of
/// another model: another name (in the last part of a path, letters' case apart), number of layers,
/// experts or experts a token.
RecordedRouting parse_routing(std::string_view text, std::string_view where,
                              const RoutedModel& model);

}  // namespace sluice
