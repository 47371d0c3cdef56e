// logprobs_cuda.
#include "codelets/logprobs/logprobs.h"

#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/logprobs_cases.h"

namespace sluice {
namespace {

using test::OnDevice;

std::vector<TokenLogprob> find(const LogprobsArgs& args, const std::vector<std::int32_t>& words,
                               const std::vector<float>& logits,
                               const std::vector<std::int32_t>& tokens) {
  const OnDevice<std::int32_t> batch(words);
  const OnDevice<float> given(logits);
  const OnDevice<std::int32_t> drawn(tokens);
  OnDevice<TokenLogprob> out(std::vector<TokenLogprob>(test::num_entries(args), test::nobody));
  logprobs_cuda(test::gpu(), {.args = &args,
                              .batch = BatchView(batch.get()),
                              .logits = given.get(),
                              .tokens = drawn.get(),
                              .out = out.get()});
  return out.read();
}

class CudaLogprobsTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(CudaLogprobsTest, OfDrawnTokensMatchTheReference) {
  test::expect_those_of_drawn_tokens(find, GetParam());
}

TEST_P(CudaLogprobsTest, OfGivenTokensMatchTheReference) {
  test::expect_those_of_given_tokens(find, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, CudaLogprobsTest, ::testing::Values(3, 97, 2049, 40'001));

TEST(CudaLogprobsValuesTest, AreThoseWorkedByHand) { test::expect_those_worked_by_hand(find); }

TEST(CudaLogprobsValuesTest, NameWhatIsNoDistribution) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto failure_of = [](const std::vector<float>& logits, std::int32_t token) {
    test::logprobs_of(find, logits, token, 1);
    return test::take_device_failure();
  };
  cuda::DeviceFailure failure =
      failure_of({1, std::numeric_limits<float>::quiet_NaN(), infinity}, 0);
  EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
  EXPECT_EQ(failure.value, 1);
  failure = failure_of({1, 2, infinity}, 0);
  EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
  EXPECT_EQ(failure.value, 2);
  failure = failure_of({1, -std::numeric_limits<float>::quiet_NaN()}, 0);
  EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
  EXPECT_EQ(failure.value, 1);
  failure = failure_of({-infinity, -infinity}, 0);
  EXPECT_EQ(failure.code, cuda::DeviceFailure::logit_nan);
  EXPECT_EQ(failure.value, -1);
  failure = failure_of({1, 2}, 2);
  EXPECT_EQ(failure.code, cuda::DeviceFailure::token_outside_vocabulary);
  EXPECT_EQ(failure.value, 2);
}

}  // namespace
}  // namespace sluice
