#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/draw/picture.h"
#include "engine/replay/report.h"
#include "engine/replay/timeline.h"

namespace sluice {

/// Load-latency curves (NEO figure 6): mean per-token latency over the rate at which requests come,
/// a plot for each model, machine and workload, a line for each policy. Points without a rate or a
/// completed request are left out. The y axis ends at 20 times the lowest latency where overload
/// leads far beyond it. A latency limit is a dashed line. Throws Error when Cairo cannot draw.
std::string draw_load_latency(const std::vector<ReplayPoint>& points,
                              std::optional<double> latency_limit_s, PictureFormat format);

/// What one replay did over time, three plots: requests that wait, that run, and whose KV is not in
/// the first pool; pools' shares taken; shares of time in which resources were busy. Means over 200
/// parts of the time. Throws Error when Cairo cannot draw.
std::string draw_timeline(const ReplayTimeline& timeline, const std::string& title,
                          PictureFormat format);

}  // namespace sluice
