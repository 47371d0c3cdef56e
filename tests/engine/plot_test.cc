#include "engine/draw/plot.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

const std::vector<LinePlot> plots = {{.title = "Rates",
                                      .x_label = "rows",
                                      .y_label = "TFLOP/s",
                                      .series = {{.label = "fc1", .points = {{1, 0.1}, {64, 0.9}}},
                                                 {.label = "fc2",
                                                  .points = {{1, 0.2}, {64, 0.8}},
                                                  .colour = 1,
                                                  .style = LineStyle::dashed}},
                                      .limit = 1.0,
                                      .limit_label = "probe"}};

TEST(PlotTest, SvgIsAWholeDocument) {
  const std::string svg = draw_plots(plots, PictureFormat::svg);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg.substr(svg.size() - 20);
}

TEST(PlotTest, PngHasItsSignatureAndEnd) {
  const std::string png = draw_plots(plots, PictureFormat::png);
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
}

TEST(PlotTest, NothingToDrawIsDrawn) {
  EXPECT_FALSE(draw_plots({LinePlot{}}, PictureFormat::svg).empty());
}

}  // namespace
}  // namespace sluice
