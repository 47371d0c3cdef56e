#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/select_rows_data.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaSelectRowsTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CudaSelectRowsTest, KeepsTheRowsThatTokensAreDrawnFrom) {
  for (const auto logits : {BatchBuilder::LogitRows::last, BatchBuilder::LogitRows::all}) {
    const test::SelectRowsData data(GetParam(), logits);
    const std::vector<std::byte> expected = data.expected();
    const OnDevice<std::int32_t> batch(data.batch.words);
    const OnDevice<std::byte> rows(data.rows);
    OnDevice<std::byte> kept(expected.size());
    select_rows_cuda(test::gpu(), {&data.args, BatchView(batch.get()), rows.get(), kept.get()});
    EXPECT_EQ(kept.read(), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(RowBytes, CudaSelectRowsTest, ::testing::Values(2, 66, 256));

}  // namespace
}  // namespace sluice
