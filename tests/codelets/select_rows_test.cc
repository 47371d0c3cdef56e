#include "codelets/select_rows/select_rows.h"

#include <gtest/gtest.h>

#include "tests/codelets/select_rows_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class SelectRowsTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(SelectRowsTest, KeepsTheRowsThatTokensAreDrawnFrom) {
  for (const auto logits : {BatchBuilder::LogitRows::last, BatchBuilder::LogitRows::all}) {
    const test::SelectRowsData data(GetParam(), logits);
    const std::vector<std::byte> expected = data.expected();
    std::vector<std::byte> kept(expected.size());
    select_rows_cpu(test::cpu(), {&data.args, data.batch.view(), data.rows.data(), kept.data()});
    EXPECT_EQ(kept, expected);
  }
}

TEST_P(SelectRowsTest, GivesTheSameAsAStarPuTask) {
  const test::SelectRowsData data(GetParam(), BatchBuilder::LogitRows::last);
  const std::vector<std::byte> expected = data.expected();
  std::vector<std::byte> kept(expected.size());
  test::runtime();
  {
    const DataHandle batch =
        DataHandle::of_memory(data.batch.words.data(), 4 * data.batch.words.size());
    const DataHandle from = DataHandle::of_memory(data.rows.data(), data.rows.size());
    const DataHandle to = DataHandle::of_memory(kept.data(), kept.size());
    submit_select_rows(data.args, {batch, from, to}, DType::bf16);
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(kept, expected);
}

TEST(SelectScoredRowsTest, ScoredRowsComeBehindThoseThatTokensAreDrawnFrom) {
  const std::vector<std::int32_t> tokens = {5, 6, 7};
  const std::vector<std::int32_t> page = {0};
  BatchBuilder builder;
  builder.add({.tokens = tokens, .pages = page, .sampling = {}, .prompt_logprobs = 0},
              BatchBuilder::LogitRows::last);
  builder.add({.tokens = page, .pages = page, .sampling = {}}, BatchBuilder::LogitRows::last);
  const std::vector<std::int32_t> words = builder.build();
  const SelectRowsArgs args{.tag = {}, .row_bytes = 2};
  const std::vector<std::uint16_t> rows = {10, 11, 12, 13};
  std::vector<std::uint16_t> kept(4);
  select_rows_cpu(test::cpu(),
                  {&args, BatchView(words.data()), reinterpret_cast<const std::byte*>(rows.data()),
                   reinterpret_cast<std::byte*>(kept.data())});
  EXPECT_EQ(kept, (std::vector<std::uint16_t>{12, 13, 10, 11}));
}

INSTANTIATE_TEST_SUITE_P(RowBytes, SelectRowsTest, ::testing::Values(2, 66, 256));

}  // namespace
}  // namespace sluice
