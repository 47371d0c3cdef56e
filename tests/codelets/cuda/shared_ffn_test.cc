#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/shared_ffn_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaSharedFfnTest : public test::SharedFfnFixture {};

TEST_P(CudaSharedFfnTest, MatchesReference) {
  const OnDevice<std::byte> gate(test::memory_of(gate_.packed));
  const OnDevice<std::byte> fc1(test::memory_of(fc1_.packed));
  const OnDevice<std::byte> fc2(test::memory_of(fc2_.packed));
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    const OnDevice<std::byte> normed(normed_);
    OnDevice<float> x(x_);
    shared_ffn_cuda(test::gpu(), {.args = &args_,
                                  .normed = normed.get(),
                                  .gate = {gate_.type, gate.get()},
                                  .fc1 = {fc1_.type, fc1.get()},
                                  .fc2 = {fc2_.type, fc2.get()},
                                  .x = x.get()});
    test::expect_close(x.read(), expected(), close_enough());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSharedFfnTest, test::shared_ffn_cases(),
                         [](const auto& case_info) { return test::shared_ffn_name(case_info); });

}  // namespace
}  // namespace sluice
