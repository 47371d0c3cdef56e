#include "perfmodels/calibration.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/perfmodels/calibrations.h"

namespace sluice {
namespace {

using nlohmann::json;

Calibration whole_calibration() {
  Calibration calibration = round_calibration(smooth_attention_s);
  calibration.links.push_back(
      {.from = Tier::ddr, .to = Tier::cxl, .points = {{1000, 1e-6}, {2000, 2e-6}}});
  return calibration;
}

TEST(CalibrationTest, ComesBackFromItsFile) {
  const Calibration written = whole_calibration();
  const Calibration read = parse_calibration(format_calibration(written), "a.json");
  EXPECT_EQ(read.setup, written.setup);
  EXPECT_TRUE(same_layers(read.model, written.model));
  EXPECT_EQ(read.ddr_bytes, written.ddr_bytes);
  EXPECT_EQ(read.task_overhead_us, written.task_overhead_us);
  ASSERT_EQ(read.points.size(), written.points.size());
  for (const CalibrationPoint& point : written.points) {
    const CalibrationPoint* found = read.find(point.batch);
    ASSERT_NE(found, nullptr);
    ASSERT_EQ(found->samples.size(), 1U);
    for (std::size_t i = 0; i < timed_sublayers.size(); ++i)
      EXPECT_DOUBLE_EQ(found->samples[0].seconds[i], point.samples[0].seconds[i]);
  }
  ASSERT_EQ(read.kv_stores.size(), written.kv_stores.size());
  EXPECT_EQ(read.kv_stores[1].phase, Phase::decode);
  EXPECT_EQ(read.kv_stores[1].rows, 8);
  EXPECT_DOUBLE_EQ(read.kv_stores[1].seconds, 160e-6);
  EXPECT_DOUBLE_EQ(read.kv_stores[1].rates.read_bandwidth_bytes_per_s, 1e9);
  ASSERT_EQ(read.links.size(), 1U);
  EXPECT_EQ(read.links[0].to, Tier::cxl);
  EXPECT_DOUBLE_EQ(read.links[0].points[1].seconds, 2e-6);
}

TEST(CalibrationTest, AnUnfinishedOneComesBackToo) {
  Calibration written = whole_calibration();
  EXPECT_TRUE(written.complete());
  written.repetitions = 2;
  EXPECT_FALSE(written.complete());
  written.points.clear();
  written.task_overhead_us.clear();
  const Calibration read = parse_calibration(format_calibration(written), "a.json");
  EXPECT_FALSE(read.complete());
  EXPECT_TRUE(read.points.empty());
}

TEST(CalibrationTest, ASublayerThatIsNotTimedIsAnError) {
  EXPECT_EQ(timed_index(Sublayer::lm_head), 5U);
  EXPECT_THROW(timed_index(Sublayer::qk), Error);
}

/// Replaces or removes one value of a good file; the message must name its path.
struct BadFile {
  const char* name;
  const char* pointer;
  json value;  ///< null: remove
  std::vector<std::string> parts;
};

std::ostream& operator<<(std::ostream& out, const BadFile& bad) { return out << bad.name; }

class BadCalibrationTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadCalibrationTest, IsRefusedInOneLine) {
  json file = json::parse(format_calibration(whole_calibration()));
  const json::json_pointer pointer(GetParam().pointer);
  if (GetParam().value.is_null()) {
    file[pointer.parent_pointer()].erase(pointer.back());
  } else {
    file[pointer] = GetParam().value;
  }
  try {
    parse_calibration(file.dump(), "a.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("a.json: ", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : GetParam().parts)
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadCalibrationTest,
    ::testing::Values(
        BadFile{"OldFormat", "/format", 99, {"format is 99", "--force"}},
        BadFile{"NoSetup", "/setup", nullptr, {"setup is missing"}},
        BadFile{"UnknownKey", "/colour", 1, {"colour: unknown key"}},
        BadFile{"NoThreads", "/setup/threads", 0, {"setup.threads is 0", "above 0"}},
        BadFile{"HalfAHead", "/model/num_heads", 1.5, {"model.num_heads", "whole number"}},
        BadFile{"NegativeTime",
                "/points/0/samples/0/fc1_us",
                -1,
                {"points.0.samples.0.fc1_us is -1", "above 0"}},
        BadFile{"TimeIsText", "/points/2/samples/0/fc1_us", "fast", {"points.2.samples.0.fc1_us"}},
        BadFile{
            "NoRates", "/points/0/samples/0/read_gb_per_s", nullptr, {"read_gb_per_s is missing"}},
        BadFile{"NoSamples", "/points/0/samples", json::array(), {"points.0.samples"}},
        BadFile{"PhaseOfTheMoon", "/points/0/phase", "full", {"points.0.phase", "decode"}},
        BadFile{"TwoRowsInDecode", "/points/0/rows", 2, {"points.0.rows is 2", "expected 1"}},
        BadFile{"LessContextThanRows", "/points/9/context", 1, {"points.9.context", "rows"}},
        BadFile{"TheSameTwice", "/points/0/context", 128, {"points.1", "twice"}},
        BadFile{"NoOverhead", "/task_overhead_us/0", -3, {"task_overhead_us.0"}},
        BadFile{"UnknownTier", "/links/0/to", "moon", {"links.0.to", "hbm"}},
        BadFile{"BytesBackwards",
                "/links/0/bytes_us",
                json::array({json::array({2000, 1}), json::array({1000, 2})}),
                {"links.0.bytes_us.1.0", "more bytes"}}),
    [](const auto& test) { return test.param.name; });

TEST(CalibrationTest, APlansComesBackFromItsFile) {
  Calibration written = round_calibration(smooth_attention_s);
  written.setup.cpu_plan = "prefill 0-1; decode 0";
  EXPECT_EQ(parse_calibration(format_calibration(written), "a.json").setup, written.setup);
}

TEST(CalibrationTest, AnAcceleratorsComesBackFromItsFile) {
  const Calibration written = accelerator_calibration(smooth_attention_s);
  const Calibration read = parse_calibration(format_calibration(written), "a.json");
  EXPECT_EQ(read.setup.device, "sand clock");
  EXPECT_EQ(read.setup, written.setup);
  EXPECT_EQ(read.measured_device(), Device::gpu);
  EXPECT_EQ(round_calibration(smooth_attention_s).measured_device(), Device::cpu);
  ASSERT_EQ(read.links.size(), 2U);
  EXPECT_EQ(read.links[1].from, Tier::hbm);
  EXPECT_DOUBLE_EQ(read.links[1].points[1].seconds, 2e-3);
  ASSERT_EQ(read.interference.size(), 3U);
  const CalibrationInterference& last = read.interference[2];
  EXPECT_EQ(last.device, Device::cpu);
  EXPECT_EQ(last.phase, Phase::decode);
  EXPECT_DOUBLE_EQ(last.kernels_alone_s, 0.5);
  EXPECT_DOUBLE_EQ(last.kernels_beside_s, 1);
  EXPECT_DOUBLE_EQ(last.link_alone_bytes_per_s, 6e9);
  EXPECT_DOUBLE_EQ(last.link_beside_bytes_per_s, 2e9);
  ASSERT_EQ(read.two_ways.size(), 3U);
  EXPECT_DOUBLE_EQ(read.two_ways[0].there_alone_bytes_per_s, 6e9);
  EXPECT_DOUBLE_EQ(read.two_ways[0].there_beside_bytes_per_s, 1.5e9);
  EXPECT_DOUBLE_EQ(read.two_ways[0].back_alone_bytes_per_s, 3e9);
  EXPECT_DOUBLE_EQ(read.two_ways[0].back_beside_bytes_per_s, 3e9);
}

TEST(CalibrationTest, AnAcceleratorWithoutItsLinkIsNotComplete) {
  const Calibration whole = accelerator_calibration(smooth_attention_s);
  EXPECT_TRUE(whole.complete());
  Calibration part = whole;
  part.links.clear();
  EXPECT_FALSE(part.complete());
  part = whole;
  part.interference.clear();
  EXPECT_FALSE(part.complete());
}

TEST(CalibrationTest, WrongInterferenceIsRefused) {
  json file = json::parse(format_calibration(accelerator_calibration(smooth_attention_s)));
  file["interference"][1]["kernels_beside_us"] = 0;
  try {
    parse_calibration(file.dump(), "a.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("interference.1.kernels_beside_us is 0"),
              std::string::npos)
        << error.what();
  }
}

TEST(CalibrationTest, NoJsonIsRefused) {
  EXPECT_THROW(parse_calibration("", "a.json"), Error);
  EXPECT_THROW(parse_calibration("[1]", "a.json"), Error);
  EXPECT_THROW(parse_calibration("{\"format\": 1", "a.json"), Error);
}

}  // namespace
}  // namespace sluice
