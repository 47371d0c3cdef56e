#pragma once

#include <string>

#include "engine/trace.h"

namespace sluice {

/// Reads what a TraceRecorder left: StarPU's events as FxT has them, and our marks between them.
/// Throws Error when the file cannot be read, has no begin or no end (a full disk), or does not
/// hold the events that StarPU 1.4 records.
Trace read_fxt(const std::string& path);

}  // namespace sluice
