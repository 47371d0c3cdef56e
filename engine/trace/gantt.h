#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/draw/picture.h"
#include "engine/trace/trace.h"

namespace sluice {

/// Draws iterations below each other, each cut into lines of equal time, as music is. On a line
/// each worker has a row of its tasks (layer and stage; the fill is the sub-batch) and below it one
/// of the sublayers inside them; each link has a row of its transfers. Tasks of other iterations
/// are pale. Throws Error when the trace has no such iteration.
std::string draw_gantt(const Trace& trace, const std::vector<std::int64_t>& iterations,
                       PictureFormat format);

}  // namespace sluice
