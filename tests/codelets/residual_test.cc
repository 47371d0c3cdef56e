#include "codelets/residual/residual.h"

#include <gtest/gtest.h>

#include "tests/codelets/residual_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class ResidualTest : public test::ResidualFixture {};

TEST_P(ResidualTest, MatchesReference) {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(x_.size());
    residual_reference(operands(), weight_.plain.values.data(), expected.data());
    residual_cpu(test::cpu(), operands());
    test::expect_close(x_, expected,
                       test::tolerance(args_.shape.dtype, test::GemmInput::exact, DType::f32));
  }
}

TEST_P(ResidualTest, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  std::vector<float> x = x_;
  residual_cpu(test::cpu(), operands());
  test::runtime();
  {
    const DataHandle input = DataHandle::of_memory(input_.data(), input_.memory.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle updated = DataHandle::of_memory(x.data(), 4 * x.size());
    submit_residual(args_, {input, vectors, weight, updated});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(x, x_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ResidualTest, test::residual_cases(),
                         [](const auto& case_info) { return test::residual_name(case_info); });

}  // namespace
}  // namespace sluice
