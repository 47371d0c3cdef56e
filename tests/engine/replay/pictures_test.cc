#include "engine/replay/pictures.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

ReplayPoint point(const char* policy, double rate_per_s, double latency_s) {
  ReplayPoint made;
  made.model = "llama-2-7b";
  made.machine = "t4";
  made.policy = policy;
  made.workload = "osc.json";
  made.rate_per_s = rate_per_s;
  made.statistics.per_token_latency_s =
      Distribution{.mean = latency_s, .p50 = 0, .p90 = 0, .p99 = 0};
  return made;
}

bool has(const std::string& svg, const std::string& path) {
  return svg.find(path) != std::string::npos;
}

// The area has its lower left corner at (66, 336), and is 390 wide and 300 high.
TEST(ReplayPicturesTest, LatencyStandsOverTheRate) {
  std::vector<ReplayPoint> points = {point("neo", 8, 0.2), point("neo", 4, 0.1),
                                     point("gpu-only", 4, 0.4), ReplayPoint{}};
  // The axes end at 8/s and, above 0.4 s, at 0.5 s; points are joined by their rates.
  const std::string svg = draw_load_latency(points, std::nullopt, PictureFormat::svg);
  EXPECT_TRUE(has(svg, "M 261 276 L 456 216")) << svg.substr(svg.size() - 2000);
  // Overload ends at 20 times the least, 2 s, unless the limit is higher.
  points.push_back(point("gpu-only", 8, 40));
  const std::string cut = draw_load_latency(points, std::nullopt, PictureFormat::svg);
  EXPECT_TRUE(has(cut, "M 261 321 L 456 306"));
  // With a limit of 4 s the axis ends at 5 s.
  const std::string limited = draw_load_latency(points, 4, PictureFormat::svg);
  EXPECT_TRUE(has(limited, "M 261 330 L 456 324"));
  EXPECT_TRUE(has(limited, "M 66 96 L 456 96"));
}

TEST(ReplayPicturesTest, NothingToDrawIsDrawn) {
  EXPECT_TRUE(draw_load_latency({}, 1, PictureFormat::svg).ends_with("</svg>\n"));
  EXPECT_TRUE(draw_timeline({}, "nothing", PictureFormat::svg).ends_with("</svg>\n"));
}

ReplayTimeline timeline() {
  return {.pools = {{"hbm", 100}},
          .resources = {"gpu"},
          .samples = {{0, 1, 0, 0, {0}, {0}}, {1, 0, 2, 1, {50}, {1}}, {4, 0, 0, 0, {0}, {2.5}}},
          .end_s = 8};
}

TEST(ReplayPicturesTest, TimelineHasThreePlots) {
  const std::string svg = draw_timeline(timeline(), "neo", PictureFormat::svg);
  EXPECT_NE(svg.find("width=\"1440pt\""), std::string::npos) << svg.substr(0, 300);
  // Half of the pool is taken from the first to the fourth second of eight, in the parts whose
  // middles are 1.02 s and 3.98 s.
  EXPECT_TRUE(has(svg, "L 115.726562 186 L 260.023438 186 L 261.976562 336"));
}

}  // namespace
}  // namespace sluice
