#pragma once

#include "engine/plan/points.h"

namespace sluice {

class CommandLine;

/// --model, --machine, --policy, --policy-option, --batch, --input-tokens, --output-tokens,
/// --weight-bits, --weights, --head-weights, --routing, --experts, --parameters-tier and --kv-tier.
void declare_points(CommandLine& line);
/// What they say. Throws UsageError.
PointLists read_points(const CommandLine& line);

}  // namespace sluice
