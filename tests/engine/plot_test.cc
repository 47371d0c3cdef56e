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

// The area has its lower left corner at (66, 336), and is 390 wide and 300 high.
TEST(PlotTest, PowersOfTwoAreEvenlyApart) {
  const std::string svg = draw_plots(plots, PictureFormat::svg);
  EXPECT_NE(svg.find("M 66 311 L 456 111"), std::string::npos);  // y ends at 1.2
}

TEST(PlotTest, ALinearAxisBeginsAtZero) {
  LinePlot plot = {.title = "Queue",
                   .x_label = "time, s",
                   .y_label = "requests",
                   .series = {{.label = "waiting", .points = {{0, 0}, {4, 3}, {10, 8}}}},
                   .limit_label = {},
                   .x_axis = XAxis::linear};
  EXPECT_NE(draw_plots({plot}, PictureFormat::svg).find("M 66 336 L 222 246 L 456 96"),
            std::string::npos);  // y ends at 10
  plot.y_top = 4;
  EXPECT_NE(draw_plots({plot}, PictureFormat::svg).find("M 66 336 L 222 111 L 456 -264"),
            std::string::npos);
}

TEST(PlotTest, OnlyFewPointsAreMarked) {
  const auto picture = [](int count) {
    LinePlot plot = {.title = "",
                     .x_label = "",
                     .y_label = "",
                     .series = {{.label = "", .points = {}}},
                     .limit_label = {},
                     .x_axis = XAxis::linear};
    for (int i = 0; i < count; ++i) plot.series[0].points.emplace_back(i, 1);
    return draw_plots({plot}, PictureFormat::svg);
  };
  EXPECT_NE(picture(64).find(" C "), std::string::npos);  // curves: circles
  EXPECT_GT(picture(64).size(), picture(65).size());
}

TEST(PlotTest, NothingToDrawIsDrawn) {
  EXPECT_FALSE(draw_plots({LinePlot{}}, PictureFormat::svg).empty());
}

}  // namespace
}  // namespace sluice
