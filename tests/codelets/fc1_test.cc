#include "codelets/fc1/fc1.h"

#include <gtest/gtest.h>

#include "tests/codelets/fc1_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class Fc1Test : public test::Fc1Fixture {};

TEST_P(Fc1Test, MatchesReference) {
  const DType dtype = args_.shape.dtype;
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(static_cast<std::size_t>(rows * args_.shape.ffn_size));
    fc1_reference(operands(), weight_.plain.values.data(), gate_.plain.values.data(),
                  expected.data());
    fc1_cpu(test::cpu(), operands());
    test::expect_close(test::to_floats(h_.data(), rows * args_.shape.ffn_size, dtype), expected,
                       test::tolerance(dtype, test::GemmInput::rounded, dtype));
  }
}

TEST_P(Fc1Test, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  fc1_cpu(test::cpu(), operands());
  std::vector<std::byte> h(h_.size());
  test::runtime();
  {
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle gate = args_.shape.gated_ffn
                                ? DataHandle::of_memory(gate_.packed.data(), gate_.packed.size())
                                : DataHandle();
    const DataHandle to_h = DataHandle::of_memory(h.data(), h.size());
    submit_fc1(args_, {x, vectors, weight, gate, to_h});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(h, h_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fc1Test, test::fc1_cases(),
                         [](const auto& case_info) { return test::fc1_name(case_info); });

TEST(Fc1GateTest, GoesToZeroFarBelowZero) {
  // A gate of -200: silu is -200 / (1 + e^200), nothing at all.
  Fc1Args args;
  args.tag.num_tokens = 1;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = args.shape.ffn_size = 1;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  const test::Operand up = test::make_operand({1.0F}, DType::f32);
  const Buffer packed = test::pack(up, 1, 1);
  const std::vector<float> vectors(1);
  for (const float gate : {-100.0F, -104.5F, -110.0F, -150.0F, -200.0F, -1000.0F}) {
    const Buffer packed_gate = test::pack(test::make_operand({gate}, DType::f32), 1, 1);
    const float x = 1.0F;
    float h = 7.0F;
    fc1_cpu(test::cpu(), {.args = &args,
                          .x = &x,
                          .vectors = vectors.data(),
                          .weight = {test::plain_type(1, 1, DType::f32), packed.data()},
                          .gate = {test::plain_type(1, 1, DType::f32), packed_gate.data()},
                          .h = reinterpret_cast<std::byte*>(&h)});
    EXPECT_NEAR(h, 0.0, 1e-30) << "gate " << gate;
  }
}

}  // namespace
}  // namespace sluice
