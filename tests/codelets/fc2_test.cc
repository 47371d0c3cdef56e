#include "codelets/fc2/fc2.h"

#include <gtest/gtest.h>

#include "tests/codelets/fc2_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class Fc2Test : public test::Fc2Fixture {};

TEST_P(Fc2Test, MatchesReference) {
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(x_.size());
    fc2_reference(operands(), weight_.plain.values.data(), expected.data());
    fc2_cpu(test::cpu(), operands());
    test::expect_close(x_, expected,
                       test::tolerance(args_.shape.dtype, test::GemmInput::exact, DType::f32));
  }
}

TEST_P(Fc2Test, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  std::vector<float> x = x_;
  fc2_cpu(test::cpu(), operands());
  test::runtime();
  {
    const DataHandle input = DataHandle::of_memory(input_.data(), input_.memory.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle updated = DataHandle::of_memory(x.data(), 4 * x.size());
    submit_fc2(args_, {input, vectors, weight, updated});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(x, x_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fc2Test, test::residual_cases(),
                         [](const auto& case_info) { return test::residual_name(case_info); });

}  // namespace
}  // namespace sluice
