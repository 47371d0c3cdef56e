#include "codelets/lm_head/lm_head.h"

#include <gtest/gtest.h>

#include "tests/codelets/lm_head_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class LmHeadTest : public test::LmHeadFixture {};

TEST_P(LmHeadTest, MatchesReference) {
  std::vector<double> expected(logits_.size());
  lm_head_reference(operands(), args_.project_out ? project_out_.plain.values.data() : nullptr,
                    head_.plain.values.data(), expected.data());
  lm_head_cpu(test::cpu(), operands());
  test::expect_close(logits_, expected,
                     test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
}

TEST_P(LmHeadTest, GivesTheSameBitsAsAStarPuTask) {
  lm_head_cpu(test::cpu(), operands());
  std::vector<float> logits(logits_.size());
  test::runtime();
  {
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle norm =
        args_.norm_weight ? DataHandle::of_memory(norm_.data(), 4 * norm_.size()) : DataHandle();
    const DataHandle project_out =
        args_.project_out
            ? DataHandle::of_memory(project_out_.packed.data(), project_out_.packed.size())
            : DataHandle();
    const DataHandle head = DataHandle::of_memory(head_.packed.data(), head_.packed.size());
    const DataHandle to_logits = DataHandle::of_memory(logits.data(), 4 * logits.size());
    submit_lm_head(args_, {x, norm, project_out, head, to_logits});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(logits, logits_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LmHeadTest, test::lm_head_cases(),
                         [](const auto& case_info) { return test::lm_head_name(case_info); });

}  // namespace
}  // namespace sluice
