#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/lm_head_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaLmHeadTest : public test::LmHeadFixture {};

TEST_P(CudaLmHeadTest, MatchesReference) {
  std::vector<double> expected(logits_.size());
  lm_head_reference(operands(), args_.project_out ? project_out_.plain.values.data() : nullptr,
                    head_.plain.values.data(), expected.data());
  const OnDevice<float> x(x_);
  const OnDevice<float> norm(norm_);
  const OnDevice<std::byte> project_out(test::memory_of(project_out_.packed));
  const OnDevice<std::byte> head(test::memory_of(head_.packed));
  OnDevice<float> logits(logits_.size());
  lm_head_cuda(test::gpu(),
               {.args = &args_,
                .x = x.get(),
                .final_norm = args_.norm_weight ? norm.get() : nullptr,
                .project_out = {args_.projection, args_.project_out ? project_out.get() : nullptr},
                .head = {head_.type, head.get()},
                .logits = logits.get()});
  test::expect_close(logits.read(), expected,
                     test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
}

TEST_P(CudaLmHeadTest, WithoutLogitRowsNothingIsComputed) {
  args_.tag.num_logit_rows = 0;
  lm_head_cuda(test::gpu(), {.args = &args_});
  EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLmHeadTest, test::lm_head_cases(),
                         [](const auto& case_info) { return test::lm_head_name(case_info); });

}  // namespace
}  // namespace sluice
