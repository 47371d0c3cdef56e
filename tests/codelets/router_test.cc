#include "codelets/router/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "tests/codelets/mixture_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class RouterTest : public test::RouterFixture {};

TEST_P(RouterTest, MatchesReference) {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    router_cpu(test::cpu(), operands());
    expect_reference(normed_, routing_);
  }
}

TEST_P(RouterTest, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  router_cpu(test::cpu(), operands());
  std::vector<std::byte> normed(normed_.size());
  std::vector<ExpertChoice> routing(routing_.size());
  test::runtime();
  {
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle to_normed = DataHandle::of_memory(normed.data(), normed.size());
    const DataHandle to_routing =
        DataHandle::of_memory(routing.data(), routing.size() * sizeof(ExpertChoice));
    submit_router(args_, {x, vectors, weight, to_normed, to_routing});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(normed, normed_);
  EXPECT_EQ(std::memcmp(routing.data(), routing_.data(), routing.size() * sizeof(ExpertChoice)), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RouterTest, test::mixture_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

INSTANTIATE_TEST_SUITE_P(Sigmoid, RouterTest, test::sigmoid_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

std::vector<std::int32_t> chosen_of(const std::vector<float>& logits, std::int32_t count) {
  std::vector<ExpertChoice> chosen(static_cast<std::size_t>(count));
  const MixtureShape mixture{.num_experts = static_cast<std::int32_t>(logits.size()),
                             .experts_per_token = count};
  EXPECT_TRUE(choose_experts(mixture, logits.data(), chosen.data()));
  std::vector<std::int32_t> numbers;
  for (const ExpertChoice& choice : chosen) numbers.push_back(choice.expert);
  return numbers;
}

TEST(ChooseExpertsTest, TakesTheLowerNumberOfEqualOnes) {
  EXPECT_EQ(chosen_of({1, 2, 2, 2, 0}, 2), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(chosen_of({3, 3, 3, 3}, 3), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(chosen_of({-0.0F, 0.0F, -1}, 1), (std::vector<std::int32_t>{0}));
  EXPECT_EQ(chosen_of({0, 5, 1, 5, 9}, 3), (std::vector<std::int32_t>{1, 3, 4}));
}

/// exp(0) : exp(ln 3) = 1 : 3, and an expert of exp(ln 4) that is left out.
TEST(ChooseExpertsTest, WeighsByHand) {
  const std::vector<float> logits = {0, std::log(3.0F), -50, std::log(4.0F)};
  std::vector<ExpertChoice> chosen(2);
  MixtureShape mixture{.num_experts = 4, .experts_per_token = 2};
  mixture.norm_chosen = true;
  ASSERT_TRUE(choose_experts(mixture, logits.data(), chosen.data()));
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_NEAR(chosen[0].weight, 3.0 / 7, 1e-6);
  EXPECT_NEAR(chosen[1].weight, 4.0 / 7, 1e-6);
  mixture.norm_chosen = false;
  ASSERT_TRUE(choose_experts(mixture, logits.data(), chosen.data()));
  EXPECT_NEAR(chosen[0].weight, 3.0 / 8, 1e-6);
  EXPECT_NEAR(chosen[1].weight, 4.0 / 8, 1e-6);
  mixture.router = RouterKind::softmax_of_chosen;
  ASSERT_TRUE(choose_experts(mixture, logits.data(), chosen.data()));
  EXPECT_NEAR(chosen[0].weight, 3.0 / 7, 1e-6);
}

/// What a sigmoid router chooses, by number, and the weights.
std::vector<ExpertChoice> chosen_by_sigmoid(const MixtureShape& mixture,
                                            const std::vector<float>& logits,
                                            const std::vector<float>& correction) {
  std::vector<ExpertChoice> chosen(static_cast<std::size_t>(mixture.experts_per_token));
  EXPECT_TRUE(choose_experts(mixture, logits.data(), chosen.data(),
                             correction.empty() ? nullptr : correction.data()));
  return chosen;
}

void expect_chosen(const std::vector<ExpertChoice>& chosen,
                   const std::vector<std::pair<int, double>>& expected) {
  ASSERT_EQ(chosen.size(), expected.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    EXPECT_EQ(chosen[i].expert, expected[i].first) << i;
    EXPECT_NEAR(chosen[i].weight, expected[i].second, 1e-6) << i;
  }
}

/// Sigmoids of 0.9, 0.25, 0.5 and 0.75, in two groups of two.
TEST(ChooseExpertsTest, CorrectsSigmoidsForTheChoiceAlone) {
  const std::vector<float> logits = {std::log(9.0F), -std::log(3.0F), 0, std::log(3.0F)};
  MixtureShape mixture{.num_experts = 4, .experts_per_token = 2, .router = RouterKind::sigmoid};
  expect_chosen(chosen_by_sigmoid(mixture, logits, {}), {{0, 0.9 / 1.65}, {3, 0.75 / 1.65}});
  // By 0.4, 0.25, 0.8 and 0.75; but weights are those of before.
  const std::vector<float> correction = {-0.5F, 0, 0.3F, 0};
  expect_chosen(chosen_by_sigmoid(mixture, logits, correction), {{2, 0.4}, {3, 0.6}});
  mixture.routed_scaling = 2.5F;
  expect_chosen(chosen_by_sigmoid(mixture, logits, correction), {{2, 1.0}, {3, 1.5}});
  mixture.norm_chosen = false;
  expect_chosen(chosen_by_sigmoid(mixture, logits, correction), {{2, 1.25}, {3, 1.875}});
}

TEST(ChooseExpertsTest, LeavesGroupsOut) {
  const std::vector<float> logits = {std::log(9.0F), -std::log(3.0F), 0, std::log(3.0F)};
  MixtureShape mixture{.num_experts = 4,
                       .experts_per_token = 1,
                       .router = RouterKind::sigmoid,
                       .norm_chosen = false,
                       .num_groups = 2,
                       .groups_per_token = 1};
  // 1.15 against 1.25: the largest of all is left out.
  expect_chosen(chosen_by_sigmoid(mixture, logits, {}), {{3, 0.75}});
  // All below 0, and still no expert of another group is chosen.
  mixture.experts_per_token = 2;
  expect_chosen(chosen_by_sigmoid(mixture, logits, {-9, -9, -9.5F, -9}), {{0, 0.9}, {1, 0.25}});
  mixture.groups_per_token = 2;
  expect_chosen(chosen_by_sigmoid(mixture, logits, {}), {{0, 0.9}, {3, 0.75}});
}

TEST(ChooseExpertsTest, TakesTheLowerNumberOfEqualGroups) {
  const MixtureShape mixture{.num_experts = 6,
                             .experts_per_token = 3,
                             .router = RouterKind::sigmoid,
                             .num_groups = 3,
                             .groups_per_token = 2};
  std::vector<std::int32_t> numbers;
  for (const ExpertChoice& choice : chosen_by_sigmoid(mixture, {1, 2, 2, 1, 2, 1}, {}))
    numbers.push_back(choice.expert);
  EXPECT_EQ(numbers, (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(ChooseExpertsTest, RefusesLogitsThatAreNotFinite) {
  std::vector<ExpertChoice> chosen(2);
  const MixtureShape mixture{.num_experts = 3, .experts_per_token = 2};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits = {1, bad, 0};
    EXPECT_FALSE(choose_experts(mixture, logits.data(), chosen.data())) << bad;
  }
}

TEST(RouterFailureTest, NamesTheRow) {
  RouterArgs args;
  args.tag.num_tokens = 3;
  args.tag.layer = 17;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = 2;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  args.mixture = {.num_experts = 2, .experts_per_token = 1};
  const Buffer packed = test::pack(test::make_operand({1, 0, 0, 1}, DType::f32), 2, 2);
  args.weight = test::plain_type(2, 2, DType::f32);
  const std::vector<float> vectors(1);
  const std::vector<float> x = {1, 2, 3, 4, std::numeric_limits<float>::quiet_NaN(), 5};
  std::vector<float> normed(6);
  std::vector<ExpertChoice> routing(3);
  try {
    router_cpu(test::cpu(), {.args = &args,
                             .x = x.data(),
                             .vectors = vectors.data(),
                             .weight = {args.weight, packed.data()},
                             .normed = reinterpret_cast<std::byte*>(normed.data()),
                             .routing = routing.data()});
    FAIL() << "a NaN went through";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("logits of row 2 in layer 17"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sluice
