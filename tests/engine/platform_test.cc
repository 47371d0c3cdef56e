#include "engine/simulate/platform.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "perfmodels/accelerated_model.h"
#include "perfmodels/measured_model.h"
#include "tests/perfmodels/calibrations.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::TemporaryFolder;

/// What is written of a machine whose accelerator has this calibration.
std::string platform_of(const Calibration& calibration) {
  const AcceleratedModel costs(
      {.cpu = std::make_unique<MeasuredModel>(round_calibration(smooth_attention_s), round_model()),
       .accelerator = std::make_unique<MeasuredModel>(calibration, round_model()),
       .hbm_bytes = 1000,
       .link = std::nullopt});
  const TemporaryFolder folder;
  write_platform(costs, folder.path().string());
  std::ifstream file(folder.path() / "bus" / "sluice.platform.v4.xml");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Bytes a second of a link; 0 where there is none.
double bandwidth(const std::string& xml, const std::string& link) {
  const std::string before = "<link id=\"" + link + "\" bandwidth=\"";
  const std::size_t start = xml.find(before);
  return start == std::string::npos ? 0 : std::stod(xml.substr(start + before.size()));
}

bool goes_through(const std::string& xml, const std::string& from, const std::string& to,
                  const std::string& link) {
  const std::size_t start = xml.find("<route src=\"" + from + "\" dst=\"" + to + "\"");
  const std::size_t end = xml.find("</route>", start);
  return start != std::string::npos &&
         xml.substr(start, end - start).find("<link_ctn id=\"" + link + "\"/>") !=
             std::string::npos;
}

TEST(PlatformTest, WaysThatShareALinkGetWhatWasMeasuredOfBoth) {
  const std::string xml = platform_of(accelerator_calibration(smooth_attention_s));
  const double there = bandwidth(xml, "to GPU");
  const double back = bandwidth(xml, "from GPU");
  // 32,768 bytes, FC1, on straight lines from 1000 bytes in 50 and 60 us to 1e6 in 1 and 2 ms.
  EXPECT_NEAR(there, 32768 / (31768 * 950e-6 / 999e3), 1);
  EXPECT_NEAR(back, 32768 / (31768 * 1940e-6 / 999e3), 1);
  EXPECT_NEAR(bandwidth(xml, "to and from GPU"), (there + back) / 1.5, 1);
  EXPECT_TRUE(goes_through(xml, "RAM", "CUDA0", "to and from GPU")) << xml;
  EXPECT_TRUE(goes_through(xml, "CUDA0", "RAM", "to and from GPU")) << xml;
}

TEST(PlatformTest, WaysThatDoNotShareALinkHaveNoneInCommon) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  calibration.two_ways.clear();
  const std::string xml = platform_of(calibration);
  EXPECT_GT(bandwidth(xml, "to GPU"), 0);
  EXPECT_EQ(xml.find("to and from GPU"), std::string::npos) << xml;
}

TEST(PlatformTest, ALinkWhoseLargestWeightTakesNoLongerThanTheSmallestHasARate) {
  Calibration calibration = accelerator_calibration(smooth_attention_s);
  calibration.links[0].points = {{1000, 9e-3}, {1e6, 1e-3}};
  const std::string xml = platform_of(calibration);
  // 1 ms for up to 1e6 bytes, in proportion beyond: the first doubling of 32,768 there is 2^20.
  const double bytes = 32768 * 32;
  EXPECT_NEAR(bandwidth(xml, "to GPU"), bytes / (1e-3 * bytes / 1e6 - 1e-3), 1);
}

}  // namespace
}  // namespace sluice
