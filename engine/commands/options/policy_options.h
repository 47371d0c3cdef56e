#pragma once

#include <map>
#include <string>

#include "engine/run/run_policy.h"

namespace sluice {

class CommandLine;

/// --policy and --policy-option.
void declare_policy_options(CommandLine& line);
/// What --policy-option says, by key. Throws UsageError.
std::map<std::string, std::string> read_policy_options(const CommandLine& line);
/// What both say. Throws UsageError, also for options without a policy.
PolicySettings read_policy(const CommandLine& line);

}  // namespace sluice
