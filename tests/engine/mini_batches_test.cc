#include "engine/mini_batches.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

TEST(MiniBatchesTest, AreAsManyAsAskedForOrMoreWhereRowsAreEnough) {
  const MiniBatches whole;
  EXPECT_EQ(whole.count(900, 2048), 1);
  const MiniBatches asked{.asked = 6, .enough_rows = unlimited};
  EXPECT_EQ(asked.count(900, 256), 6);
  EXPECT_EQ(asked.count(4, 256), 4);
  const MiniBatches limited{.asked = 2, .enough_rows = 2048};
  EXPECT_EQ(limited.count(9, 256), 2);     // of 5 and 4
  EXPECT_EQ(limited.count(64, 256), 8);    // of 8 each
  EXPECT_EQ(limited.count(7, 700), 4);     // of 2 and 1: three would be 2100 rows
  EXPECT_EQ(limited.count(3, 10'000), 3);  // of one each, however long
}

TEST(MiniBatchesTest, NoChainHasMoreRowsThanWereReckonedForTheLargestIteration) {
  for (const std::int64_t asked : {1, 2, 5, 40}) {
    for (const std::int64_t enough : {std::int64_t{30}, std::int64_t{64}, unlimited}) {
      const MiniBatches cut{.asked = asked, .enough_rows = enough};
      for (const auto& [most_sequences, longest] : {std::pair(13, 17), std::pair(24, 5), {7, 90}}) {
        const std::int64_t most = cut.most_rows(most_sequences, longest);
        for (std::int64_t sequences = 1; sequences <= most_sequences; ++sequences) {
          const std::vector<int> items(static_cast<std::size_t>(sequences));
          for (std::int64_t rows = 1; rows <= longest; ++rows) {
            for (const std::vector<int>& part : cut_evenly(items, cut.count(sequences, rows)))
              ASSERT_LE(static_cast<std::int64_t>(part.size()) * rows, most)
                  << sequences << " of " << rows << ", " << asked << ", " << enough;
          }
        }
      }
    }
  }
}

TEST(MiniBatchesTest, PartsAreEqualAndInOrder) {
  std::vector<int> items(11);
  std::iota(items.begin(), items.end(), 0);
  const std::vector<std::vector<int>> expected = {{0, 1, 2}, {3, 4, 5, 6}, {7, 8, 9, 10}};
  EXPECT_EQ(cut_evenly(items, 3), expected);
  EXPECT_EQ(cut_evenly(items, 100).size(), 11U);
  EXPECT_TRUE(cut_evenly(std::vector<int>{}, 3).empty());
}

}  // namespace
}  // namespace sluice
