#include "base/cpu_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using sluice::testing::expect_error;

using Json = nlohmann::json;

/// Two nodes of four cores with one hardware thread each.
Topology two_nodes() { return Topology::described_by("pack:2 numa:1 core:4 pu:1"); }

Json some_plan() {
  return Json::parse(R"({
    "prefill": {"groups": [{"cores": [0, 1, 2, 3], "numa_node": 0, "share": 0.5},
                           {"cores": [4, 5, 6, 7], "numa_node": 1, "share": 0.5}]},
    "decode": {"groups": [{"cores": [0, 1, 2], "numa_node": 0, "share": 0.6},
                          {"cores": [5, 6], "numa_node": null, "share": 0.4}],
               "left_out": [3, 4, 7], "predicted_s": 0.5, "measured_s": null}})");
}

CpuPlan read(const Json& json) { return read_cpu_plan(json, "p.json", two_nodes()); }

TEST(CpuPlanTest, IsReadAndWrittenAgain) {
  const CpuPlan plan = read(some_plan());
  EXPECT_EQ(plan.prefill.num_cores(), 8);
  EXPECT_EQ(plan.decode.num_cores(), 5);
  ASSERT_EQ(plan.decode.groups.size(), 2U);
  EXPECT_EQ(plan.decode.groups[0].cores, (std::vector{0, 1, 2}));
  EXPECT_EQ(plan.decode.groups[0].numa_node, 0);
  EXPECT_DOUBLE_EQ(plan.decode.groups[0].share, 0.6);
  EXPECT_EQ(plan.decode.groups[1].numa_node, std::nullopt);
  EXPECT_EQ(plan.decode.left_out, (std::vector{3, 4, 7}));
  EXPECT_EQ(plan.decode.predicted_s, 0.5);
  EXPECT_EQ(plan.decode.measured_s, std::nullopt);
  EXPECT_EQ(plan.cores(), (std::vector{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(read(as_json(plan, two_nodes())), plan);
  EXPECT_EQ(read({{"cpu_plan", as_json(plan, two_nodes())}, {"other", 1}}), plan);
}

TEST(CpuPlanTest, NamedPlans) {
  const Topology topology = two_nodes();
  const CpuPlan one = interleaved_plan({0, 4, 5});
  EXPECT_EQ(one.prefill, one.decode);
  ASSERT_EQ(one.decode.groups.size(), 1U);
  EXPECT_EQ(one.decode.groups[0], (CpuGroup{.cores = {0, 4, 5}}));
  const CpuPlan nodes = static_plan({0, 4, 5, 6}, topology);
  EXPECT_EQ(nodes.prefill, nodes.decode);
  ASSERT_EQ(nodes.decode.groups.size(), 2U);
  EXPECT_EQ(nodes.decode.groups[0], (CpuGroup{.cores = {0}, .numa_node = 0, .share = 0.25}));
  EXPECT_EQ(nodes.decode.groups[1], (CpuGroup{.cores = {4, 5, 6}, .numa_node = 1, .share = 0.75}));
  EXPECT_EQ(read(as_json(nodes, topology)), nodes);
}

struct BadPlan {
  const char* pointer;  ///< what is wrong of some_plan()
  const char* value;
  const char* message;
};

class BadPlanTest : public ::testing::TestWithParam<BadPlan> {};

TEST_P(BadPlanTest, IsRefusedInOneLine) {
  Json json = some_plan();
  json[Json::json_pointer(GetParam().pointer)] = Json::parse(GetParam().value);
  expect_error([&] { read(json); }, {"p.json: ", GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(
    Plans, BadPlanTest,
    ::testing::Values(
        BadPlan{"/decode/groups/1/cores", "[2, 6]", "core 2 stands twice in its phase"},
        BadPlan{"/decode/left_out", "[5]", "decode.left_out: core 5 stands twice"},
        BadPlan{"/prefill/groups/0/cores", "[0, 8]",
                "core 8 is not there; the machine has 8 hardware threads"},
        BadPlan{"/prefill/groups/0/cores", "[0.5]", "has 0.5, expected a processor's number"},
        BadPlan{"/prefill/groups/0/cores", "{}",
                "prefill.groups[0].cores is an object, expected a list"},
        BadPlan{"/prefill/groups/0/cores", "[]", "prefill.groups[0] has no core"},
        BadPlan{"/decode/groups", "[]", "decode has no core"},
        BadPlan{"/decode/groups", "3", "decode.groups is 3, expected a list"},
        BadPlan{"/decode", "{}", "\"groups\" of decode is missing"},
        BadPlan{"/decode", "7", "decode: 7, expected an object"},
        BadPlan{"/decode/groups/0/share", "0.5", "decode.groups: the shares add up to 0.9"},
        BadPlan{"/decode/groups/0/share", "0", "share is 0, expected a number above 0"},
        BadPlan{"/decode/groups/0/share", "\"half\"", "share is \"half\", expected a number"},
        BadPlan{"/decode/groups/0/numa_node", "2", "numa_node is 2, and the machine has no such"},
        BadPlan{"/decode/predicted_s", "-1", "decode.predicted_s is -1, expected seconds"},
        BadPlan{"/topology", "\"machine(0)\"", "a plan of another machine"}));

TEST(CpuPlanTest, ACoreHasOneThread) {
  const Topology topology = Topology::described_by("pack:1 core:2 pu:2");
  const auto plan = [&](const Json& cores) {
    const Json phase = {{"groups", {{{"cores", cores}, {"share", 1}}}}};
    return read_cpu_plan({{"prefill", phase}, {"decode", phase}}, "p.json", topology);
  };
  EXPECT_EQ(plan({1, 2}).decode.groups[0].cores, (std::vector{1, 2}));
  expect_error(
      [&] {
        plan({2, 0, 3});
      },
      {"p.json: prefill.groups[0].cores: 2 and 3 are hardware threads of one core"});
}

TEST(CpuPlanTest, NoKeyIsLost) {
  Json json = some_plan();
  json["decode"]["leftout"] = {7};
  expect_error([&] { read(json); }, {"p.json: decode: unknown key \"leftout\"", "left_out"});
  json = some_plan();
  json["decode"]["groups"][0]["node"] = 0;
  expect_error([&] { read(json); },
               {"decode.groups[0]: unknown key \"node\", expected cores, numa_node, share"});
}

TEST(CpuPlanTest, APlansListOfOnePointIsRead) {
  const Json json = as_json(read(some_plan()), two_nodes());
  EXPECT_EQ(read(Json::array({{{"cpu_plan", json}, {"model", "toy"}}})), read(some_plan()));
  expect_error([&] { read(Json::array({json, json})); }, {"2", "expected an object"});
}

TEST(CpuPlanTest, NeedsBothPhases) {
  Json json = some_plan();
  json.erase("decode");
  expect_error([&] { read(json); }, {"p.json: \"decode\" is missing"});
  expect_error([] { read(Json::array()); }, {"p.json: [], expected an object"});
}

}  // namespace
}  // namespace sluice
