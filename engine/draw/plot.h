#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/draw/picture.h"

namespace sluice {

enum class LineStyle : std::uint8_t { solid, dashed };

/// One line of a plot.
struct PlotSeries {
  std::string label;
  std::vector<std::pair<double, double>> points;  ///< x above 0
  std::size_t colour = 0;                         ///< one of seven, counted round
  LineStyle style = LineStyle::solid;
};

/// Lines over a logarithmic x axis (powers of two) and a linear y axis from 0 on.
struct LinePlot {
  std::string title;
  std::string x_label;  ///< with its unit
  std::string y_label;  ///< with its unit
  std::vector<PlotSeries> series;
  double limit = 0;  ///< a dashed line, 0: none
  std::string limit_label;
};

/// The plots side by side, each with its legend below, as the bytes of a file. Throws Error when
/// Cairo cannot draw.
std::string draw_plots(const std::vector<LinePlot>& plots, PictureFormat format);

}  // namespace sluice
