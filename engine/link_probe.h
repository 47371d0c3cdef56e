#pragma once

#include <cstdint>
#include <vector>

#include "codelets/runtime/runtime.h"
#include "perfmodels/calibration.h"

namespace sluice {

/// How long data of 4 KiB to 64 MiB, at most `largest_bytes`, takes between DDR and the memory of
/// the runtime's accelerator, either way: medians of what StarPU needs to bring it there while
/// nothing else moves. Host memory is pinned where the accelerator is a GPU. No task may run. Throws
/// Error when StarPU refuses.
std::vector<CalibrationLink> measure_links(const Runtime& runtime, std::uint64_t largest_bytes);

}  // namespace sluice
