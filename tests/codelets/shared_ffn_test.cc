#include "codelets/shared_ffn/shared_ffn.h"

#include <gtest/gtest.h>

#include "tests/codelets/shared_ffn_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class SharedFfnTest : public test::SharedFfnFixture {};

TEST_P(SharedFfnTest, MatchesReference) {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    const std::vector<double> right = expected();
    shared_ffn_cpu(test::cpu(), operands());
    test::expect_close(x_, right, close_enough());
  }
}

TEST_P(SharedFfnTest, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  std::vector<float> x = x_;
  shared_ffn_cpu(test::cpu(), operands());
  test::runtime();
  {
    const auto handle_of = [](const test::PackedWeight& weight) {
      if (weight.packed.size() == 0) return DataHandle();
      return DataHandle::of_memory(weight.packed.data(), weight.packed.size());
    };
    const DataHandle normed = DataHandle::of_memory(normed_.data(), normed_.size());
    const DataHandle gate = handle_of(gate_);
    const DataHandle fc1 = handle_of(fc1_);
    const DataHandle fc2 = handle_of(fc2_);
    const DataHandle updated = DataHandle::of_memory(x.data(), 4 * x.size());
    submit_shared_ffn(args_, {normed, gate, fc1, fc2, updated});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(x, x_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedFfnTest, test::shared_ffn_cases(),
                         [](const auto& case_info) { return test::shared_ffn_name(case_info); });

}  // namespace
}  // namespace sluice
