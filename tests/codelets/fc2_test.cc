#include "codelets/fc2/fc2.h"

#include <gtest/gtest.h>

#include "tests/codelets/residual_cases.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class Fc2Test : public ::testing::TestWithParam<std::tuple<DType, test::ResidualShape>> {
 protected:
  Fc2Test() : random_(71) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.ffn_size = from.inner_size;
    shape.gated_ffn = false;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    vectors_ = test::make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    weight_ = test::make_weight(random_, from.hidden_size, from.inner_size, dtype);
    input_ = test::make_operand(random_.floats(most_rows * from.inner_size, 2.0), dtype);
    residual_ = random_.floats(most_rows * from.hidden_size, 3.0);
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    x_.assign(residual_.begin(), residual_.begin() + rows * args_.shape.hidden_size);
  }

  Fc2Operands operands() {
    return {.args = &args_,
            .h = input_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.packed.data(),
            .x = x_.data()};
  }

  static constexpr std::int64_t most_rows = 66;
  test::Random random_;
  Fc2Args args_;
  test::LayerVectors vectors_;
  test::Weight weight_;
  test::Operand input_;
  std::vector<float> residual_, x_;
};

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
