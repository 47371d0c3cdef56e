#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/draw/picture.h"

namespace sluice {

enum class LineStyle : std::uint8_t { solid, dashed };

enum class XAxis : std::uint8_t {
  powers_of_two,  ///< logarithmic
  linear,         ///< from 0 on
};

/// One line of a plot. Its points are marked unless there are many.
struct PlotSeries {
  std::string label;
  /// Each x above 0, or from 0 on where the axis is linear.
  std::vector<std::pair<double, double>> points;
  std::size_t colour = 0;  ///< one of seven, counted round
  LineStyle style = LineStyle::solid;
};

/// Lines over a linear y axis from 0 on.
struct LinePlot {
  std::string title;
  std::string x_label;  ///< with its unit
  std::string y_label;  ///< with its unit
  std::vector<PlotSeries> series;
  double limit = 0;  ///< a dashed line, 0: none
  std::string limit_label;
  XAxis x_axis = XAxis::powers_of_two;
  double y_top = 0;  ///< where the y axis ends, whatever lies above; 0: above all
};

/// The plots side by side, each with its legend below, as the bytes of a file. Throws Error when
/// Cairo cannot draw.
std::string draw_plots(const std::vector<LinePlot>& plots, PictureFormat format);

}  // namespace sluice
