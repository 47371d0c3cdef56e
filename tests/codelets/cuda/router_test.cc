#include <gtest/gtest.h>

#include <limits>

#include "codelets/expert_join/expert_join.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/mixture_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaRouterTest : public test::RouterFixture {};

TEST_P(CudaRouterTest, MatchesReference) {
  const OnDevice<float> x(x_);
  const OnDevice<float> vectors(vectors_.values);
  const OnDevice<std::byte> weight(test::memory_of(weight_.packed));
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    OnDevice<std::byte> normed(normed_);
    OnDevice<ExpertChoice> routing(routing_.size());
    router_cuda(test::gpu(), {.args = &args_,
                              .x = x.get(),
                              .vectors = vectors.get(),
                              .weight = {weight_.type, weight.get()},
                              .normed = normed.get(),
                              .routing = routing.get()});
    expect_reference(normed.read(), routing.read());
  }
  EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaRouterTest, test::mixture_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

INSTANTIATE_TEST_SUITE_P(Sigmoid, CudaRouterTest, test::sigmoid_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

/// Of groups with equal sums the lower number, and within them of equal experts.
TEST(CudaRouterGroupsTest, TakesTheLowerNumberOfEqualGroups) {
  RouterArgs args;
  args.tag.num_tokens = 1;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = 2;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  args.mixture = {.num_experts = 6,
                  .experts_per_token = 3,
                  .router = RouterKind::sigmoid,
                  .num_groups = 3,
                  .groups_per_token = 2};
  const Buffer packed =
      test::pack(test::make_operand({1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0}, DType::f32), 6, 2);
  args.weight = test::plain_type(2, 6, DType::f32);
  const OnDevice<std::byte> weight(test::memory_of(packed));
  const OnDevice<float> vectors(std::vector<float>(1));
  const OnDevice<float> x(std::vector<float>{1, 2});
  OnDevice<float> normed(2);
  OnDevice<ExpertChoice> routing(3);
  router_cuda(test::gpu(), {.args = &args,
                            .x = x.get(),
                            .vectors = vectors.get(),
                            .weight = {args.weight, weight.get()},
                            .normed = reinterpret_cast<std::byte*>(normed.get()),
                            .routing = routing.get()});
  const std::vector<ExpertChoice> chosen = routing.read();
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(chosen[static_cast<std::size_t>(i)].expert, i);
}

TEST(CudaRouterFailureTest, TiesAndValuesThatAreNotFinite) {
  RouterArgs args;
  args.tag.num_tokens = 3;
  args.tag.layer = 17;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = 2;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  args.mixture = {.num_experts = 4, .experts_per_token = 2};
  const Buffer packed = test::pack(test::make_operand({1, 0, 0, 1, 1, 0, 0, 1}, DType::f32), 4, 2);
  args.weight = test::plain_type(2, 4, DType::f32);
  const OnDevice<std::byte> weight(test::memory_of(packed));
  const OnDevice<float> vectors(std::vector<float>(1));
  const OnDevice<float> x(
      std::vector<float>{1, 2, 5, 5, std::numeric_limits<float>::quiet_NaN(), 5});
  OnDevice<float> normed(6);
  OnDevice<ExpertChoice> routing(6);
  router_cuda(test::gpu(), {.args = &args,
                            .x = x.get(),
                            .vectors = vectors.get(),
                            .weight = {args.weight, weight.get()},
                            .normed = reinterpret_cast<std::byte*>(normed.get()),
                            .routing = routing.get()});
  const std::vector<ExpertChoice> chosen = routing.read();
  EXPECT_EQ(chosen[0].expert, 1);
  EXPECT_EQ(chosen[1].expert, 3);
  EXPECT_EQ(chosen[2].expert, 0);  // of four equal ones
  EXPECT_EQ(chosen[3].expert, 1);
  const cuda::DeviceFailure failure = test::take_device_failure();
  EXPECT_EQ(failure.code, cuda::DeviceFailure::router_logit_not_finite);
  EXPECT_EQ(failure.row, 2);
  EXPECT_EQ(failure.value, 17);
}

TEST(CudaExpertJoinTest, Adds) {
  ExpertJoinArgs args;
  args.tag.num_tokens = 3;
  args.shape.hidden_size = 101;
  test::Random random(5);
  const std::vector<float> before = random.floats(303);
  const std::vector<float> added = random.floats(303);
  OnDevice<float> x(before);
  const OnDevice<float> sum(added);
  expert_join_cuda(test::gpu(),
                   {.args = &args, .sum = sum.get(), .vectors = nullptr, .x = x.get()});
  const std::vector<float> after = x.read();
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i], before[i] + added[i]) << i;
  args.has_hot_sum = true;
  const std::vector<float> hot = random.floats(303);
  const OnDevice<float> hot_sum(hot);
  expert_join_cuda(test::gpu(), {.args = &args,
                                 .sum = sum.get(),
                                 .hot_sum = hot_sum.get(),
                                 .vectors = nullptr,
                                 .x = x.get()});
  const std::vector<float> both = x.read();
  for (std::size_t i = 0; i < both.size(); ++i)
    EXPECT_EQ(both[i], after[i] + (added[i] + hot[i])) << i;
}

}  // namespace
}  // namespace sluice
