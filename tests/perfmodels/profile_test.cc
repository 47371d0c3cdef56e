#include "perfmodels/profile.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/perfmodels/machine.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

template <typename Call>
std::string message(const Call& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The message for round_machine() after an RFC 6902 patch.
std::string message_for(const char* patch) {
  const json machine = round_machine().patch(json::parse(patch));
  return message([&] { return parse_profile(machine.dump(), "m.json"); });
}

// ---- The profiles that come with Sluice

class ShippedProfileTest : public testing::TestWithParam<std::string> {};

TEST_P(ShippedProfileTest, LoadsUnderItsName) {
  const MachineProfile profile = load_profile(GetParam());
  EXPECT_EQ(profile.name, GetParam());
  EXPECT_NE(profile.description, "");
  EXPECT_GT(profile.tier(Tier::ddr)->usable_bytes(), 0U);
  EXPECT_EQ(profile.all_reduce.has_value(), profile.gpu_count() > 1);
}

/// Numbers stand only where "value", "points", "peak", "half_at" or a surface's axes are, beside a
/// source; and the source says where from.
void expect_sources(const json& value, const std::string& path) {
  if (value.is_array()) {
    for (const json& element : value) expect_sources(element, path + "[]");
    return;
  }
  // How many cores share something is what the source beside it is about.
  ASSERT_FALSE(value.is_number() && !path.ends_with("contention[].cores")) << path;
  if (!value.is_object()) return;
  if (!value.contains("source")) {
    for (const auto& [key, member] : value.items())
      expect_sources(member, fmt::format("{}.{}", path, key));
    return;
  }
  const std::string source = value["source"];
  constexpr std::array kinds = {"LIA ",       "HeLM ",    "NEO ",      "Sandwich ", "datasheet: ",
                                "measured: ", "fitted: ", "derived: ", "assumed: "};
  const bool is_known = std::any_of(kinds.begin(), kinds.end(),
                                    [&](const char* kind) { return source.starts_with(kind); });
  EXPECT_TRUE(is_known) << path << ": " << source;
}

TEST_P(ShippedProfileTest, SaysWhereEveryNumberComesFrom) {
  std::ifstream file(fs::path(SLUICE_PROFILE_DIR) / (GetParam() + ".json"));
  expect_sources(json::parse(file), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, ShippedProfileTest, testing::ValuesIn(known_profiles()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(KnownProfilesTest, AreThoseOfThePapers) {
  const std::vector<std::string> expected = {"cxl-asic",
                                             "cxl-fpga",
                                             "dgx-a100",
                                             "epyc-7h12-2",
                                             "g4-4xlarge",
                                             "g5-16xlarge",
                                             "g5-2xlarge",
                                             "g5-4xlarge",
                                             "g5-8xlarge",
                                             "gnr-a100",
                                             "gnr-h100",
                                             "grace-hopper",
                                             "hgx-h100-2",
                                             "icelake-a100-dram",
                                             "icelake-a100-fsdax",
                                             "icelake-a100-memorymode",
                                             "icelake-a100-nvdram",
                                             "icelake-a100-ssd",
                                             "ktransformers-4090",
                                             "ktransformers-5090",
                                             "kunpeng-920-4",
                                             "spr-a100",
                                             "spr-a100-avx512",
                                             "spr-h100",
                                             "xeon-6151-2",
                                             "xeon-6230-2",
                                             "xeon-8272cl-2"};
  EXPECT_EQ(known_profiles(), expected);
}

TEST(LoadProfileTest, VariantsInheritWhatTheyDoNotSay) {
  const MachineProfile amx = load_profile("spr-a100");
  const MachineProfile avx512 = load_profile("spr-a100-avx512");
  EXPECT_EQ(avx512.cpu.cores->value, amx.cpu.cores->value);
  EXPECT_EQ(avx512.links.size(), amx.links.size());
  EXPECT_GT(amx.cpu.gemm_tflop_per_s.value.at(512), 4 * avx512.cpu.gemm_tflop_per_s.value.at(512));
}

TEST(LoadProfileTest, UnknownNameListsTheNearestFirst) {
  const std::string text = message([] { return load_profile("spr-a10"); });
  EXPECT_EQ(text.find("no profile named \"spr-a10\"; known are spr-a100, "), 0U) << text;
  EXPECT_NE(text.find("hgx-h100-2"), std::string::npos);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_NE(message([] { return load_profile("../profiles/spr-a100"); }), "no error");
  EXPECT_NE(message([] { return load_profile(""); }), "no error");
}

// ---- Fields

TEST(ParseProfileTest, ReadsEveryForm) {
  const MachineProfile profile = patched_machine(R"({
    "cpu": {"gemm_tflop_per_s": {"over": "rows", "points": [[1, 1], [100, 10]], "value": null},
            "attention_tflop_per_s": {"over": "rows", "peak": 8, "half_at": 4, "value": null},
            "attention_bandwidth_gb_per_s": {"batch": [1, 4], "context": [16],
                                             "values": [[10], [40]], "value": null},
            "idle_watts": {"value": 50, "source": "test"}},
    "system": {"price_usd": {"value": 1000, "source": "a shop"}}})");
  EXPECT_DOUBLE_EQ(profile.cpu.gemm_tflop_per_s.value.at(10), std::sqrt(10.0));
  EXPECT_DOUBLE_EQ(profile.cpu.attention_tflop_per_s.value.at(4), 4);
  EXPECT_DOUBLE_EQ(profile.cpu.attention_bandwidth_gb_per_s.value.at(2, 999), 20);
  EXPECT_EQ(profile.cpu.idle_watts->value, 50);
  EXPECT_FALSE(profile.gpu->idle_watts);
  EXPECT_EQ(profile.system.price_usd->source, "a shop");
  EXPECT_EQ(profile.tier(Tier::hbm)->usable_bytes(), (29ULL << 30) / 2);  // 14.5 GiB
}

TEST(ParseProfileTest, PinnedLinksComeFirst) {
  json machine = round_machine();
  json pageable = machine["links"][0];
  pageable["pinned"] = false;
  pageable["bandwidth_gb_per_s"]["value"] = 7;
  for (const std::size_t at : {std::size_t{0}, std::size_t{5}}) {
    json changed = machine;
    changed["links"].insert(changed["links"].begin() + static_cast<std::ptrdiff_t>(at), pageable);
    const MachineProfile profile = parse_profile(changed.dump(), "m.json");
    EXPECT_TRUE(profile.link(Tier::ddr, Tier::hbm)->pinned);
  }
  EXPECT_EQ(parse_profile(machine.dump(), "m.json").link(Tier::disk, Tier::hbm), nullptr);
}

TEST(ParseProfileTest, WithoutAGpu) {
  json machine = round_machine();
  machine.erase("gpu");
  machine.erase("links");
  for (const char* tier : {"hbm", "cxl", "disk"}) machine["tiers"].erase(tier);
  EXPECT_FALSE(parse_profile(machine.dump(), "m.json").gpu);
}

TEST(ParseProfileTest, NamesFileFieldFoundAndExpected) {
  const struct {
    const char* patch;
    const char* expected;
  } cases[] = {
      {R"([{"op": "replace", "path": "/cpu/cores/value", "value": "8"}])",
       "m.json: cpu.cores.value is \"8\", expected a number above 0"},
      {R"([{"op": "replace", "path": "/cpu/cores/value", "value": 7.5}])",
       "m.json: cpu.cores.value is 7.5, expected a whole number"},
      {R"([{"op": "replace", "path": "/cpu/cores", "value": 8}])",
       "m.json: cpu.cores is 8, expected {\"value\": a number, \"source\": \"where it comes "
       "from\"}"},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s", "value": 8}])",
       "m.json: cpu.gemm_tflop_per_s is 8, expected {\"value\": a number, \"source\": \"where it "
       "comes from\"}"},
      {R"([{"op": "remove", "path": "/cpu/cores"}])", "m.json: cpu.cores is missing"},
      {R"([{"op": "remove", "path": "/cpu/cores/source"}])", "m.json: cpu.cores.source is missing"},
      {R"([{"op": "replace", "path": "/cpu/cores/source", "value": " "}])",
       "m.json: cpu.cores.source is \" \", expected a text that is not empty"},
      {R"([{"op": "replace", "path": "/links/1/latency_us/value", "value": -1}])",
       "m.json: links.1.latency_us.value is -1, expected a number, 0 or more"},
      {R"([{"op": "replace", "path": "/gpu/memory_bandwidth_gb_per_s/value", "value": 0}])",
       "m.json: gpu.memory_bandwidth_gb_per_s.value is 0, expected a number above 0"},
      {R"([{"op": "add", "path": "/cpu/memory_bandwith", "value": 0}])",
       "m.json: cpu.memory_bandwith: unknown key, expected name, cores, "
       "memory_bandwidth_gb_per_s, gemm_tflop_per_s, attention_bandwidth_gb_per_s, "
       "attention_tflop_per_s, combine, task_overhead_us, dequantize_gb_per_s, idle_watts, "
       "busy_watts, price_usd, topology, node_bandwidth_gb_per_s, remote_bandwidth_gb_per_s, "
       "round_us, contention"},
      {R"([{"op": "add", "path": "/links/0/note", "value": 0}])",
       "m.json: links.0.note: unknown key, expected from, to, bandwidth_gb_per_s, latency_us, "
       "pinned, bypasses_pcie"},
      {R"([{"op": "add", "path": "/gpu/all_reduce", "value": {}}])",
       "m.json: gpu.all_reduce.bandwidth_gb_per_s is missing"},
      {R"([{"op": "add", "path": "/gpu/all_reduce", "value": {"latency": 1}}])",
       "m.json: gpu.all_reduce.latency: unknown key, expected bandwidth_gb_per_s, latency_us"},
      {R"([{"op": "add", "path": "/cpu/all_reduce", "value": {}}])",
       "m.json: cpu.all_reduce: unknown key, expected name, cores, memory_bandwidth_gb_per_s, "
       "gemm_tflop_per_s, attention_bandwidth_gb_per_s, attention_tflop_per_s, combine, "
       "task_overhead_us, dequantize_gb_per_s, idle_watts, busy_watts, price_usd, topology, "
       "node_bandwidth_gb_per_s, remote_bandwidth_gb_per_s, round_us, contention"},
      {R"([{"op": "add", "path": "/cpu/cores/unit", "value": "1"}])",
       "m.json: cpu.cores.unit: unknown key, expected value, source"},
      {R"([{"op": "replace", "path": "/cpu/combine", "value": "mean"}])",
       "m.json: cpu.combine is \"mean\", expected \"max\" or \"sum\""},
      {R"([{"op": "replace", "path": "/causal_attention/value", "value": 2}])",
       "m.json: causal_attention.value is 2, expected 0 or 1"},
      {R"([{"op": "replace", "path": "/links/0/pinned", "value": 1}])",
       "m.json: links.0.pinned is 1, expected true or false"},
      {R"([{"op": "add", "path": "/links/2/bypasses_pcie", "value": 1}])",
       "m.json: links.2.bypasses_pcie is 1, expected true or false"},
      {R"([{"op": "add", "path": "/links/2/bypasses_pcie", "value": "yes"}])",
       "m.json: links.2.bypasses_pcie is \"yes\", expected true or false"},
      {R"([{"op": "add", "path": "/links/0/bypasses_pcie", "value": true}])",
       "m.json: links.0.bypasses_pcie: only of a link between hbm and another tier than ddr"},
      {R"([{"op": "add", "path": "/links/3/bypasses_pcie", "value": true}])",
       "m.json: links.3.bypasses_pcie: only of a link between hbm and another tier than ddr"},
      {R"([{"op": "add", "path": "/tiers/ddr/cache", "value": {}}])",
       "m.json: tiers.ddr.cache.missed_to_hbm_gb_per_s is missing"},
      {R"([{"op": "add", "path": "/tiers/ddr/cache",
            "value": {"capacity_gib": {"value": 1, "source": "test"},
                      "missed_cpu_gb_per_s": {"value": 999, "source": "test"},
                      "missed_to_hbm_gb_per_s": {"value": 1, "source": "test"}}}])",
       "m.json: tiers.ddr.cache.missed_cpu_gb_per_s.value is 999, expected at most "
       "cpu.memory_bandwidth_gb_per_s, 100, the rate of what it holds"},
      {R"([{"op": "add", "path": "/tiers/cxl/cache", "value": {}}])",
       "m.json: tiers.cxl.cache: unknown key, expected capacity_gib, reserved_gib, "
       "cpu_bandwidth_gb_per_s"},
      {R"([{"op": "replace", "path": "/links/0/to", "value": "ddr"}])",
       "m.json: links.0.to is \"ddr\", expected another tier than \"from\""},
      {R"([{"op": "replace", "path": "/links/0/to", "value": "vram"}])",
       "m.json: links.0.to is \"vram\", expected \"hbm\" or \"ddr\" or \"cxl\" or \"disk\""},
      {R"([{"op": "remove", "path": "/tiers/disk"}])",
       "m.json: links.4.from is \"disk\", expected one of the profile's tiers"},
      {R"([{"op": "copy", "from": "/links/0", "path": "/links/1"}])",
       "m.json: links.1: a second pinned link from ddr to hbm"},
      {R"([{"op": "remove", "path": "/links/1"}])",
       "m.json: links: no link from hbm to ddr, which tiers.hbm needs"},
      {R"([{"op": "remove", "path": "/links/3"}])",
       "m.json: links: no link from cxl to ddr, which tiers.cxl needs"},
      {R"([{"op": "remove", "path": "/links/5"}])",
       "m.json: links: no link from ddr to cxl, which tiers.cxl needs"},
      {R"([{"op": "remove", "path": "/links/4"}])",
       "m.json: links: no link from disk to ddr, which tiers.disk needs"},
      {R"([{"op": "remove", "path": "/links/6"}])",
       "m.json: links: no link from ddr to disk, which tiers.disk needs"},
      {R"([{"op": "remove", "path": "/links"}])",
       "m.json: tiers.hbm: no link from hbm to ddr, which tiers.hbm needs"},
      {R"([{"op": "remove", "path": "/gpu"}])",
       "m.json: tiers.hbm: a tier of a GPU, but the profile has no gpu"},
      {R"([{"op": "remove", "path": "/tiers/hbm"}])", "m.json: tiers.hbm is missing"},
      {R"([{"op": "remove", "path": "/tiers/cxl/cpu_bandwidth_gb_per_s"}])",
       "m.json: tiers.cxl.cpu_bandwidth_gb_per_s is missing"},
      {R"([{"op": "replace", "path": "/tiers/hbm/reserved_gib/value", "value": 16}])",
       "m.json: tiers.hbm: 16 GiB of 16 are reserved, expected less"},
      {R"([{"op": "replace", "path": "/links", "value": []}])",
       "m.json: links is [], expected a list with at least one element"},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
            "value": {"over": "bytes", "points": [[1, 1]], "source": "test"}}])",
       "m.json: cpu.gemm_tflop_per_s.over is \"bytes\", expected \"rows\""},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
            "value": {"over": "rows", "points": [[2, 1], [1, 1]], "source": "test"}}])",
       "m.json: cpu.gemm_tflop_per_s: x of a curve goes from 2 to 1, expected ascending values"},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
            "value": {"over": "rows", "points": [[2, -1]], "source": "test"}}])",
       "m.json: cpu.gemm_tflop_per_s.points.0.1 is -1, expected a number above 0"},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
            "value": {"over": "rows", "points": [[2]], "source": "test"}}])",
       "m.json: cpu.gemm_tflop_per_s.points.0 is [2], expected a pair [x, y]"},
      {R"([{"op": "replace", "path": "/cpu/gemm_tflop_per_s",
            "value": {"over": "rows", "peak": 2, "source": "test"}}])",
       "m.json: cpu.gemm_tflop_per_s.half_at is missing"},
      {R"([{"op": "replace", "path": "/cpu/attention_bandwidth_gb_per_s",
            "value": {"batch": [1, 2], "context": [1], "values": [[1]], "source": "test"}}])",
       "m.json: cpu.attention_bandwidth_gb_per_s: the number of rows of values is 1, "
       "expected 2, one for each x"},
      {R"([{"op": "remove", "path": "/description"}])", "m.json: description is missing"},
      {R"([{"op": "replace", "path": "/cpu", "value": []}])",
       "m.json: cpu is [], expected an object with name, cores, "
       "memory_bandwidth_gb_per_s, gemm_tflop_per_s, attention_bandwidth_gb_per_s, "
       "attention_tflop_per_s, combine, task_overhead_us, dequantize_gb_per_s, idle_watts, "
       "busy_watts, price_usd, topology, node_bandwidth_gb_per_s, remote_bandwidth_gb_per_s, "
       "round_us, contention"},
  };
  for (const auto& [patch, expected] : cases) EXPECT_EQ(message_for(patch), expected) << patch;
}

/// A number that only another unit explains: where it stands, the number, what is believed.
TEST(ParseProfileTest, NumbersInAnotherUnitAreRefused) {
  const struct {
    const char* path;
    double number;
    const char* expected;
  } cases[] = {
      {"/links/0/bandwidth_gb_per_s/value", 24e9, "0.05 to 10000 GB/s"},   // bytes
      {"/links/0/bandwidth_gb_per_s/value", 24000, "0.05 to 10000 GB/s"},  // MB
      {"/links/0/bandwidth_gb_per_s/value", 0.024, "0.05 to 10000 GB/s"},  // TB
      {"/links/0/bandwidth_gb_per_s/value", 1e-12, "0.05 to 10000 GB/s"},
      {"/links/0/latency_us/value", 1e-5, "0, or 0.001 to 100000 us"},  // s
      {"/gpu/memory_bandwidth_gb_per_s/value", 1.555, "10 to 200000 GB/s"},
      {"/gpu/memory_bandwidth_gb_per_s/value", 1.555e12, "10 to 200000 GB/s"},
      {"/gpu/attention_bandwidth_gb_per_s/value", 1.555, "10 to 200000 GB/s"},
      {"/gpu/gemm_tflop_per_s/value", 312000, "1 to 50000 TFLOP/s"},  // GFLOP
      {"/gpu/gemm_tflop_per_s/value", 0.312, "1 to 50000 TFLOP/s"},   // PFLOP
      {"/gpu/count/value", 1e20, "1 to 1000 GPUs"},
      {"/gpu/all_reduce/bandwidth_gb_per_s/value", 99e9, "0.05 to 10000 GB/s"},
      {"/gpu/all_reduce/latency_us/value", 2e-5, "0, or 0.001 to 100000 us"},
      {"/cpu/memory_bandwidth_gb_per_s/value", 0.26, "1 to 20000 GB/s"},
      {"/cpu/gemm_tflop_per_s/value", 16900, "0.005 to 2000 TFLOP/s"},
      {"/cpu/attention_tflop_per_s/value", 16.9e12, "0.005 to 2000 TFLOP/s"},
      {"/cpu/dequantize_gb_per_s/value", 20e9, "0.1 to 200000 GB/s"},
      {"/cpu/cores/value", 1e9, "1 to 10000 cores"},
      {"/cpu/task_overhead_us/value", 1e5, "0, or 0.001 to 10000 us"},
      {"/tiers/ddr/capacity_gib/value", 524288, "0.1 to 100000 GiB"},  // MiB
      {"/tiers/hbm/capacity_gib/value", 81920, "0.1 to 10000 GiB"},
      {"/tiers/hbm/capacity_gib/value", 1e300, "0.1 to 10000 GiB"},  // more than can be counted
      {"/tiers/hbm/reserved_gib/value", 1e10, "0, or 0.001 to 10000 GiB"},
      {"/tiers/disk/capacity_gib/value", 2e12, "0.1 to 1000000 GiB"},
      {"/tiers/cxl/cpu_bandwidth_gb_per_s/value", 25e9, "0.05 to 10000 GB/s"},
  };
  for (const auto& [path, number, expected] : cases) {
    const json patch = {{{"op", "replace"}, {"path", path}, {"value", number}}};
    std::string field = std::string(path).substr(1);
    std::replace(field.begin(), field.end(), '/', '.');
    EXPECT_EQ(message_for(patch.dump().c_str()),
              fmt::format("m.json: {} is {}, expected {}; is it in another unit?", field,
                          json(number).dump(), expected));
  }
}

TEST(ParseProfileTest, OfACurveTheLargestNumberTellsTheUnit) {
  EXPECT_EQ(message_for(R"([{"op": "replace", "path": "/gpu/gemm_tflop_per_s", "value":
      {"over": "rows", "points": [[1, 0.001], [64, 9], [512, 312]], "source": "test"}}])"),
            "no error");
  EXPECT_EQ(message_for(R"([{"op": "replace", "path": "/gpu/gemm_tflop_per_s", "value":
      {"over": "rows", "points": [[1, 1000], [64, 90000], [512, 80000]], "source": "test"}}])"),
            "m.json: gpu.gemm_tflop_per_s.points.1.1 is 90000, expected 1 to 50000 TFLOP/s; is it "
            "in another unit?");
  EXPECT_EQ(message_for(R"([{"op": "replace", "path": "/gpu/gemm_tflop_per_s", "value":
      {"over": "rows", "peak": 0.312, "half_at": 9, "source": "test"}}])"),
            "m.json: gpu.gemm_tflop_per_s.peak is 0.312, expected 1 to 50000 TFLOP/s; is it in "
            "another unit?");
  EXPECT_EQ(
      message_for(R"([{"op": "replace", "path": "/gpu/attention_bandwidth_gb_per_s", "value":
      {"batch": [1, 4], "context": [16], "values": [[0.5], [1.5]], "source": "test"}}])"),
      "m.json: gpu.attention_bandwidth_gb_per_s.values.1.0 is 1.5, expected 10 to 200000 GB/s; is "
      "it in another unit?");
}

TEST(ParseProfileTest, RefusesWhatIsNoProfile) {
  const auto text_of = [](const std::string& text) {
    return message([&] { return parse_profile(text, "m.json"); });
  };
  EXPECT_EQ(text_of("[1]"), "m.json: found [1], expected an object that describes a machine");
  EXPECT_EQ(
      text_of(R"({"name": "a", "name": "b"})"),
      "m.json: key \"name\" stands twice in one JSON object; keep one, or get the file again");
  EXPECT_EQ(text_of(std::string(100000, '[')),
            "m.json: nested deeper than 16 levels, which no such file is");
  EXPECT_EQ(text_of("{}"), "m.json: name is missing");
  const std::string whole = round_machine().dump();
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    const std::string text = text_of(whole.substr(0, length));
    EXPECT_EQ(text.find("m.json: not valid JSON: "), 0U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  EXPECT_EQ(text_of("{\"name\": 1e999}").find("m.json: "), 0U);
}

// ---- Bases

class BaseTest : public testing::Test {
 protected:
  BaseTest() { write("root", round_machine()); }

  std::string path(const std::string& name) const { return folder_.file(name + ".json"); }
  void write(const std::string& name, const json& value) const {
    folder_.write(name + ".json", value.dump());
  }
  void write(const std::string& name, const char* text) const { write(name, json::parse(text)); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(BaseTest, PageableMachinesHaveOtherLinks) {
  const std::string file = path("m");
  json machine = round_machine();
  const auto complaint = [&]() -> std::string {
    write("m", machine);
    try {
      load_profile(file + ":pageable");
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const std::string name = machine["name"].get<std::string>();
  EXPECT_NE(complaint().find(name + " has no pageable link from ddr to hbm"), std::string::npos)
      << complaint();
  std::vector<json> pageable;
  for (const json& link : machine["links"]) {
    if (link["from"] != "hbm" && link["to"] != "hbm") continue;
    pageable.push_back(link);
    pageable.back()["pinned"] = false;
    pageable.back()["bandwidth_gb_per_s"]["value"] = 7;
  }
  const json pinned = machine["links"];
  machine["links"].push_back(pageable.front());
  if (pageable.size() > 1) {
    EXPECT_NE(complaint().find("has no pageable link from"), std::string::npos) << complaint();
  }
  for (std::size_t i = 1; i < pageable.size(); ++i) machine["links"].push_back(pageable[i]);
  write("m", machine);
  const MachineProfile profile = load_profile(file + ":pageable");
  EXPECT_EQ(profile.name, name + ":pageable");
  EXPECT_EQ(profile.links.size(), pinned.size());
  EXPECT_DOUBLE_EQ(profile.link(Tier::ddr, Tier::hbm)->bandwidth_gb_per_s.value.at(1e6), 7);
  EXPECT_DOUBLE_EQ(profile.link(Tier::hbm, Tier::ddr)->bandwidth_gb_per_s.value.at(1e6), 7);
  EXPECT_NE(load_profile(file).link(Tier::ddr, Tier::hbm)->bandwidth_gb_per_s.value.at(1e6), 7);
  machine.erase("gpu");
  machine.erase("links");
  for (const char* tier : {"hbm", "cxl", "disk"}) machine["tiers"].erase(tier);
  EXPECT_NE(complaint().find("has no GPU"), std::string::npos) << complaint();
}

TEST_F(BaseTest, IsPatchedInTurn) {
  write("middle", R"({"name": "middle", "description": "d", "base": "root", "gpu":
      {"count": {"value": 2, "source": "more"}}})");
  write("leaf", R"({"name": "leaf", "description": "d", "base": "middle.json", "cpu":
      {"gemm_tflop_per_s": {"over": "rows", "peak": 4, "half_at": 1, "source": "new"},
       "dequantize_gb_per_s": null}})");
  const MachineProfile leaf = load_profile(path("leaf"));
  EXPECT_EQ(leaf.name, "leaf");
  EXPECT_EQ(leaf.num_gpus->value, 2);
  EXPECT_EQ(leaf.cpu.gemm_tflop_per_s.source, "new");
  EXPECT_DOUBLE_EQ(leaf.cpu.gemm_tflop_per_s.value.at(1), 2);
  EXPECT_FALSE(leaf.cpu.dequantize_gb_per_s);
  EXPECT_EQ(leaf.gpu->dequantize_gb_per_s->value, 200);
}

TEST_F(BaseTest, SaysWhatElseDrawsPowerUnlessThatIsSaidAnotherWay) {
  json root = round_machine();
  root["system"] = {{"other_watts", {{"value", 200}, {"source", "test"}}},
                    {"price_usd", {{"value", 9000}, {"source", "test"}}}};
  write("root", root);
  write("leaf", R"({"name": "leaf", "description": "d", "base": "root",
                    "system": {"idle_watts": {"value": 500, "source": "new"}}})");
  const SystemProfile leaf = load_profile(path("leaf")).system;
  EXPECT_EQ(leaf.idle_watts->value, 500);
  EXPECT_FALSE(leaf.other_watts);
  EXPECT_EQ(leaf.price_usd->value, 9000);
  write("same", R"({"name": "same", "description": "d", "base": "root"})");
  EXPECT_EQ(load_profile(path("same")).system.other_watts->value, 200);
}

TEST_F(BaseTest, LendsNeitherItsNameNorANumbersSource) {
  write("nameless", R"({"base": "root"})");
  EXPECT_EQ(message([&] { return load_profile(path("nameless")); }),
            path("nameless") + ": name is missing");
  write("sourceless", R"({"name": "a", "description": "d", "base": "root",
                          "cpu": {"cores": {"value": 9}}})");
  EXPECT_EQ(message([&] { return load_profile(path("sourceless")); }),
            path("sourceless") + ": cpu.cores.source is missing");
}

TEST_F(BaseTest, IsNamedWhereTheMistakeIsInIt) {
  json broken = round_machine();
  broken["cpu"]["cores"]["value"] = true;
  write("root", broken);
  write("leaf", R"({"name": "leaf", "description": "d", "base": "root"})");
  EXPECT_EQ(message([&] { return load_profile(path("leaf")); }),
            path("root") + ": cpu.cores.value is true, expected a number above 0");
}

TEST_F(BaseTest, MayBeAKnownProfile) {
  write("mine", R"({"name": "mine", "description": "d", "base": "spr-a100"})");
  EXPECT_EQ(load_profile(path("mine")).cpu.cores->value, 40);
}

TEST_F(BaseTest, IsRefusedWhenMissingOrCyclic) {
  write("lost", R"({"name": "lost", "description": "d", "base": "spr-b100"})");
  EXPECT_EQ(message([&] {
              return load_profile(path("lost"));
            }).find(path("lost") + ": base: no profile named \"spr-b100\"; known are spr-"),
            0U);
  write("gone", R"({"name": "gone", "description": "d", "base": "nowhere.json"})");
  EXPECT_EQ(message([&] { return load_profile(path("gone")); }),
            path("nowhere") + ": cannot be read, expected a profile's JSON file");
  fs::create_directories(path("folder"));
  EXPECT_EQ(message([&] { return load_profile(path("folder")); }),
            path("folder") + ": cannot be read, expected a profile's JSON file");
  std::ofstream(path("empty")).close();
  EXPECT_EQ(message([&] {
              return load_profile(path("empty"));
            }).find(path("empty") + ": not valid JSON: "),
            0U);
  write("self", R"({"name": "self", "description": "d", "base": "self"})");
  EXPECT_EQ(message([&] { return load_profile(path("self")); }),
            path("self") + ": base: \"self\" is based on this profile itself");
  write("a", R"({"name": "a", "description": "d", "base": "b"})");
  write("b", R"({"name": "b", "description": "d", "base": "a"})");
  EXPECT_EQ(message([&] { return load_profile(path("a")); }),
            path("b") + ": base: \"a\" is based on this profile itself");
  write("odd", R"({"name": "odd", "description": "d", "base": 7})");
  EXPECT_EQ(message([&] { return load_profile(path("odd")); }),
            path("odd") + ": base: expected the name of a profile");
}

}  // namespace
}  // namespace sluice
