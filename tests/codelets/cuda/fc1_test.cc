#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/fc1_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaFc1Test : public test::Fc1Fixture {};

TEST_P(CudaFc1Test, MatchesReference) {
  const DType dtype = args_.shape.dtype;
  const OnDevice<float> x(x_);
  const OnDevice<float> vectors(vectors_.values);
  const OnDevice<std::byte> weight(test::memory_of(weight_.packed));
  const OnDevice<std::byte> gate(test::memory_of(gate_.packed));
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, std::int64_t{40}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(static_cast<std::size_t>(rows * args_.shape.ffn_size));
    fc1_reference(operands(), weight_.plain.values.data(), gate_.plain.values.data(),
                  expected.data());
    OnDevice<std::byte> h(h_.size());
    fc1_cuda(test::gpu(), {.args = &args_,
                           .x = x.get(),
                           .vectors = vectors.get(),
                           .weight = {weight_.type, weight.get()},
                           .gate = {weight_.type, args_.shape.gated_ffn ? gate.get() : nullptr},
                           .h = h.get()});
    test::expect_close(test::to_floats(h.read().data(), rows * args_.shape.ffn_size, dtype),
                       expected, test::tolerance(dtype, test::GemmInput::rounded, dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaFc1Test, test::fc1_cases(),
                         [](const auto& case_info) { return test::fc1_name(case_info); });

TEST(CudaFc1GateTest, GoesToZeroFarBelowZero) {
  Fc1Args args;
  args.tag.num_tokens = 1;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = args.shape.ffn_size = 1;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  const Buffer packed = test::pack(test::make_operand({1.0F}, DType::f32), 1, 1);
  const OnDevice<std::byte> up(test::memory_of(packed));
  const OnDevice<float> vectors(std::vector<float>(1));
  const OnDevice<float> x(std::vector<float>{1.0F});
  for (const float value : {-100.0F, -104.5F, -150.0F, -1000.0F}) {
    const Buffer packed_gate = test::pack(test::make_operand({value}, DType::f32), 1, 1);
    const OnDevice<std::byte> gate(test::memory_of(packed_gate));
    OnDevice<float> h(1);
    fc1_cuda(test::gpu(), {.args = &args,
                           .x = x.get(),
                           .vectors = vectors.get(),
                           .weight = {test::plain_type(1, 1, DType::f32), up.get()},
                           .gate = {test::plain_type(1, 1, DType::f32), gate.get()},
                           .h = reinterpret_cast<std::byte*>(h.get())});
    EXPECT_NEAR(h.read().front(), 0.0, 1e-30) << "gate " << value;
  }
}

}  // namespace
}  // namespace sluice
