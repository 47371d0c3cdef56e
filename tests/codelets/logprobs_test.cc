#include "codelets/logprobs/logprobs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codelets/runtime/runtime.h"
#include "tests/codelets/logprobs_cases.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

std::vector<TokenLogprob> find_on_cpu(const LogprobsArgs& args,
                                      const std::vector<std::int32_t>& words,
                                      const std::vector<float>& logits,
                                      const std::vector<std::int32_t>& tokens) {
  std::vector<TokenLogprob> out(test::num_entries(args), test::nobody);
  logprobs_cpu(test::cpu(), {.args = &args,
                             .batch = BatchView(words.data()),
                             .logits = logits.data(),
                             .tokens = tokens.data(),
                             .out = out.data()});
  return out;
}

/// As a StarPU task, by the name of its type.
template <DType dtype>
std::vector<TokenLogprob> find_as_task(const LogprobsArgs& args,
                                       const std::vector<std::int32_t>& words,
                                       const std::vector<float>& logits,
                                       const std::vector<std::int32_t>& tokens) {
  test::runtime();
  std::vector<TokenLogprob> out(test::num_entries(args), test::nobody);
  {
    const DataHandle batch = DataHandle::of_memory(words.data(), 4 * words.size());
    const DataHandle rows = DataHandle::of_memory(logits.data(), 4 * logits.size());
    const DataHandle found = DataHandle::of_memory(out.data(), sizeof(out[0]) * out.size());
    DataHandle drawn;
    if (!tokens.empty()) drawn = DataHandle::of_memory(tokens.data(), 4 * tokens.size());
    submit_logprobs(dtype, args, {.batch = batch, .logits = rows, .tokens = drawn, .out = found});
  }
  EXPECT_FALSE(run_failure().happened());
  return out;
}

class LogprobsTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(LogprobsTest, OfDrawnTokensMatchTheReference) {
  test::expect_those_of_drawn_tokens(find_on_cpu, GetParam());
  test::expect_those_of_drawn_tokens(find_as_task<DType::f32>, GetParam());
}

TEST_P(LogprobsTest, OfGivenTokensMatchTheReference) {
  test::expect_those_of_given_tokens(find_on_cpu, GetParam());
  test::expect_those_of_given_tokens(find_as_task<DType::bf16>, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, LogprobsTest, ::testing::Values(3, 97, 2049, 40'001));

TEST(LogprobsValuesTest, AreThoseWorkedByHand) { test::expect_those_worked_by_hand(find_on_cpu); }

TEST(LogprobsValuesTest, NameWhatIsNoDistribution) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto refused = [](const std::vector<float>& logits, std::int32_t token) -> std::string {
    try {
      test::logprobs_of(find_on_cpu, logits, token, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused({1, std::numeric_limits<float>::quiet_NaN(), 2}, 0),
            "the model computed nan for token 1; its weights or dtype are bad");
  EXPECT_EQ(refused({1, 2, infinity}, 0),
            "the model computed inf for token 2; its weights or dtype are bad");
  EXPECT_EQ(refused({-infinity, -infinity}, 0),
            "the model gives no token a chance: all logits are -inf");
  EXPECT_EQ(refused({1, 2}, 2), "token 2 is not one of the vocabulary's 2");
}

}  // namespace
}  // namespace sluice
