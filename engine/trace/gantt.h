#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/draw/picture.h"
#include "engine/trace/trace.h"

namespace sluice {

/// A part of each iteration, counted from its begin.
struct TimeRange {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = std::numeric_limits<std::int64_t>::max();
};

/// Draws iterations below each other, each cut into lines of equal time, as music is. On a line
/// each worker has a row of its tasks (layer and stage; the fill is the sub-batch) and below it one
/// of the sublayers inside them; each link has a row of its transfers, in lanes where they overlap.
/// Tasks of other iterations are pale. Throws Error when the trace has no such iteration, or one
/// ends before `range` begins.
std::string draw_gantt(const Trace& trace, const std::vector<std::int64_t>& iterations,
                       PictureFormat format, const TimeRange& range = {});

}  // namespace sluice
