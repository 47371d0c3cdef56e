// Logits have the same bits however the threads are cut into groups, and whichever phase an
// iteration is of.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "base/cpu.h"
#include "models/model.h"
#include "tests/support/engine.h"
#include "tests/support/golden.h"

namespace sluice {
namespace {

using test::TestModel;

struct Plan {
  const char* name;
  int threads;  ///< more than the machine has cores share them
  PhaseGroups groups;
};

ThreadPool::Cut all_of(int threads) {
  ThreadPool::Group group;
  for (int thread = 0; thread < threads; ++thread) group.threads.push_back(thread);
  return {group};
}

const std::vector<Plan> plans = {
    {"one_thread_each_phase", 2, {{{.threads = {0}}}, {{.threads = {1}}}}},
    {"decode_on_one", 2, {all_of(2), {{.threads = {0}}}}},
    {"two_groups",
     2,
     {{{.threads = {0}, .share = 0.5}, {.threads = {1}, .share = 0.5}},
      {{.threads = {0}, .share = 0.5}, {.threads = {1}, .share = 0.5}}}},
    {"four_groups_of_uneven_shares",
     4,
     {all_of(4),
      {{.threads = {3}, .share = 0.1},
       {.threads = {0}, .share = 0.45},
       {.threads = {2}, .share = 0.25},
       {.threads = {1}, .share = 0.2}}}},
    {"uneven_groups",
     5,
     {{{.threads = {0, 1, 2}, .share = 0.7}, {.threads = {3, 4}, .share = 0.3}},
      {{.threads = {4}, .share = 0.6}, {.threads = {1, 2}, .share = 0.4}}}},
};

/// "llama-3-gqa bf16"
using Case = std::string;
using Logits = std::map<Case, std::vector<float>>;

const std::vector<std::int32_t>& tokens() {
  static const std::vector<std::int32_t> all = [] {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 40; ++i) ids.push_back(3 + i * 37 % 50);
    return ids;
  }();
  return all;
}
const std::vector<std::size_t> lengths = {40, 1, 9, 17};

/// Heads that two or four groups cannot share evenly.
Model with_kv_heads(std::int64_t kv_heads) {
  ModelConfig config = find_shape("llama-3.2-1b");
  config.num_layers = 2;
  config.hidden_size = config.embed_size = 80;
  config.num_heads = 2 * kv_heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = 16;
  config.ffn_size = 144;
  config.vocab_size = 100;
  Model model;
  model.config = config;
  model.weights = random_weights(config, DType::f32, 3);
  return model;
}

Logits all_logits() {
  Logits logits;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::string type(to_string(dtype));
    for (const std::string& name : test::golden_cases()) {
      logits[name + " " + type] =
          TestModel(test::golden_folder(name), dtype, test::runtime().num_threads())
              .ragged_logits(tokens(), lengths);
    }
    for (const std::int64_t kv_heads : {1, 5}) {
      logits["kv_heads " + std::to_string(kv_heads) + " " + type] =
          TestModel(with_kv_heads(kv_heads), dtype, test::runtime().num_threads())
              .ragged_logits(tokens(), lengths);
    }
  }
  return logits;
}

class CpuPlanLogitsTest : public ::testing::TestWithParam<Plan> {};

TEST_P(CpuPlanLogitsTest, AreThoseOfOneThread) {
  static const Logits expected = [] {
    test::runtime_in_groups(1, std::nullopt);
    return all_logits();
  }();
  ASSERT_FALSE(expected.empty());
  test::runtime_in_groups(GetParam().threads, GetParam().groups);
  const Logits found = all_logits();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, logits] : found) EXPECT_TRUE(logits == expected.at(name)) << name;
}

TEST(CpuPlanOfARuntimeTest, MayChangeBetweenIterations) {
  test::runtime_in_groups(4, std::nullopt);
  TestModel model(with_kv_heads(5), DType::bf16, 4);
  const std::vector<float> expected = model.ragged_logits(tokens(), lengths);
  for (int round = 0; round < 2; ++round) {
    for (const Plan& plan : plans) {
      if (plan.threads > 4) continue;
      test::runtime(4).compute_by(plan.groups);
      EXPECT_EQ(model.ragged_logits(tokens(), lengths), expected) << plan.name;
    }
  }
}

std::uint64_t pages_of(const DataHandle& data) {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return (data.size_bytes() + page_bytes - 1) / page_bytes;
}

/// To one part and back to none.
void expect_moves(LoadedModel& model, int node) {
  const std::vector<PartPages> before = model.pages_by_part();
  model.move_parts({{node, 1}});
  ASSERT_EQ(model.pages_by_part().size(), 1U);
  EXPECT_EQ(model.pages_by_part()[0].asked, before[0].asked + before[1].asked);
  EXPECT_EQ(model.pages_by_part()[0].found, before[0].found + before[1].found);
  model.move_parts({});
  EXPECT_TRUE(model.pages_by_part().empty());
  model.move_parts({before[0].part, before[1].part});
  EXPECT_EQ(model.pages_by_part()[0].found, before[0].found);
}

// All parts lie on the only node that every machine has.
TEST(WeightPartsTest, LieOnTheirNodesAndAreTheSameWeights) {
  const int node = read_cpu_topology().numa_nodes.front().os_index;
  for (const char* name : {"llama-3-gqa", "mixtral"}) {
    const Model model = open_model(test::golden_folder(name));
    const LoadedModel plain(model, DType::bf16, test::runtime().setup_pool());
    EXPECT_TRUE(plain.pages_by_part().empty());
    WeightHomes homes;
    homes.ddr_shares = {{node, 0.3}, {node, 0.7}};
    LoadedModel bound(model, DType::bf16, test::runtime().setup_pool(), {}, homes);
    std::uint64_t pages = pages_of(bound.head.data);
    for (std::size_t layer = 0; layer < bound.layers().size(); ++layer) {
      for (const LayerMatrix& matrix : layer_matrices(model.config, static_cast<int>(layer))) {
        if (matrix.of_each_expert) continue;
        const DataHandle& there = bound.layers()[layer].matrices[matrix.weight].data;
        const DataHandle& expected = plain.layers()[layer].matrices[matrix.weight].data;
        ASSERT_EQ(there.size_bytes(), expected.size_bytes());
        EXPECT_EQ(std::memcmp(there.main_memory(), expected.main_memory(), there.size_bytes()), 0);
        pages += pages_of(there);
      }
    }
    const std::vector<PartPages> parts = bound.pages_by_part();
    if (parts.empty()) GTEST_SKIP() << "the system refuses to bind memory";
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].part, homes.ddr_shares[0]);
    expect_moves(bound, node);
    EXPECT_EQ(parts[0].asked + parts[1].asked, pages) << name << ": experts are not among them";
    for (const PartPages& part : parts) EXPECT_EQ(part.found, part.asked) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, CpuPlanLogitsTest, ::testing::ValuesIn(plans),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace sluice
