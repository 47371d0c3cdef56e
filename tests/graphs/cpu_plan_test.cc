// Logits have the same bits however the threads are cut into groups, and whichever phase an
// iteration is of.
#include <gtest/gtest.h>

#include <map>

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

INSTANTIATE_TEST_SUITE_P(Plans, CpuPlanLogitsTest, ::testing::ValuesIn(plans),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace sluice
