#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/draw/picture.h"

namespace sluice {

/// Bars from 1 upwards or downwards over a logarithmic axis, in groups.
struct RatioPlot {
  std::string title;
  /// By group, then series, each above 0; nothing: there is none.
  std::vector<std::vector<std::optional<double>>> ratios;
  /// The same way: the figure itself, with its unit, where there is nothing to compare it with;
  /// else empty.
  std::vector<std::vector<std::string>> figures = {};
};

/// Plots of the same groups and series.
struct RatioGrid {
  std::vector<std::string> groups;  ///< below each plot
  std::string group_label;          ///< what the groups are
  std::vector<std::string> series;  ///< for the legend
  std::string baseline;             ///< what 1 is, for the legend
  /// By row, then column. Plots of a row share their axis.
  std::vector<std::vector<RatioPlot>> rows;
};

/// Rows below each other with one legend, as the bytes of a file. Throws Error when Cairo cannot
/// draw.
std::string draw_ratios(const RatioGrid& grid, PictureFormat format);

}  // namespace sluice
