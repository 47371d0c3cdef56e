#pragma once

#include <string>

#include "engine/replay/replay_run.h"

namespace sluice {

/// An outcome as one line of JSON, for another process to read; every number stays what it is.
std::string outcome_to_json(const ReplayOutcome& outcome);
/// Throws Error for a text that outcome_to_json() does not write.
ReplayOutcome outcome_from_json(const std::string& text);

}  // namespace sluice
