#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/residual_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaResidualTest : public test::ResidualFixture {};

TEST_P(CudaResidualTest, MatchesReference) {
  const OnDevice<std::byte> input(input_.memory);
  const OnDevice<float> vectors(vectors_.values);
  const OnDevice<std::byte> weight(test::memory_of(weight_.packed));
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, std::int64_t{40}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(x_.size());
    residual_reference(operands(), weight_.plain.values.data(), expected.data());
    OnDevice<float> x(x_);
    residual_cuda(test::gpu(), {.args = &args_,
                                .inner = input.get(),
                                .vectors = vectors.get(),
                                .weight = {weight_.type, weight.get()},
                                .x = x.get()});
    test::expect_close(x.read(), expected,
                       test::tolerance(args_.shape.dtype, test::GemmInput::exact, DType::f32));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaResidualTest, test::residual_cases(),
                         [](const auto& case_info) { return test::residual_name(case_info); });

}  // namespace
}  // namespace sluice
