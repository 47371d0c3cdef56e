#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/trace/trace.h"
#include "perfmodels/task_cost.h"

namespace sluice {

/// Whether this program can read what StarPU records; else read_fxt() throws Error.
bool has_fxt();

/// Predicts the parts of a stage, as stage_parts() does.
using StageParts = std::function<std::vector<SublayerSeconds>(const TaskTag&, Device)>;

/// Reads what a TraceRecorder left: StarPU's events as FxT has them, and our marks between them. A
/// stage that no kernel stamped (a GPU's, the stand-in's, a simulated one) is divided in proportion
/// to its `parts`; without them it counts as its first sublayer.
/// `request_ids` are TraceRecorder::request_ids(); a request that is not among them has none.
/// Throws Error when the file cannot be read, has no begin or no end (a full disk), or does not
/// hold the events that StarPU 1.4 records.
Trace read_fxt(const std::string& path, const StageParts& parts = nullptr,
               const std::map<std::int64_t, std::string>& request_ids = {});

}  // namespace sluice
